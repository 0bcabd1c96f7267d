"""Drafts of specs: from a trace, from recorded calls, or for a whole repository."""
