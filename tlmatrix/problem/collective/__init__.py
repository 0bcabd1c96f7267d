"""Collectives alone: what ranks have is gathered, added up, or added up and scattered."""
