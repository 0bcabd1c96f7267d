"""Collect YAML specs as tests."""
