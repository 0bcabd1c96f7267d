"""The commands of `tlmatrix`, a module each; `tlmatrix.cli` reads their arguments."""
