"""Sharing the tensors of a whole problem out among ranks, and putting results together again."""
