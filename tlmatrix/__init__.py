"""A declarative test matrix for TileLang GPU kernels."""
