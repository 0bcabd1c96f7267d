"""Checks across the keys of a spec whose every key is valid by itself."""
