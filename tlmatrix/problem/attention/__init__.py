"""Attention: dense or packed, with grouped heads, causal and windowed masks, and sinks."""
