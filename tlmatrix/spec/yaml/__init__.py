"""YAML text as a tree of nodes with their line and column, and edits of that text."""
