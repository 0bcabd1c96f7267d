"""Collectives: all-gather, all-reduce and reduce-scatter."""
