"""Reports as one HTML file without a network."""

from tlmatrix.report.html.page import render, rendered

__all__ = ["render", "rendered"]
