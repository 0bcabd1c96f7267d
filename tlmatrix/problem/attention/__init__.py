"""Attention: dense, packed, padded or with a KV cache; grouped heads, masks and sinks."""
