"""The names of attention's properties, which a spec may choose from; known without torch."""

from __future__ import annotations

__all__ = ["PROPERTIES"]

PROPERTIES = (
    "batch_permuted",
    "batch_split",
    "batch_extended",
    "groups_as_repeated_heads",
    "window_as_long_as_keys",
    "sink_of_minus_infinity",
    "sink_merged_afterwards",
    "keys_permuted",
    "other_layout",
    "padding_elsewhere",
    "pages_moved",
    "other_page_size",
    "other_store",
)
