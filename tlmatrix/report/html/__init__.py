"""The report of runs as one HTML file without a network."""

from tlmatrix.report.html.page import render

__all__ = ["render"]
