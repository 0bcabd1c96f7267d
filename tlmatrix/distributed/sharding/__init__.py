"""Shards the tensors of a whole problem over ranks."""
