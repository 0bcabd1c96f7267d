"""Lets pytest's `-k` select cases by `axis=value`, which its own grammar has no room for.

`-k "causal=true and dtype=float16"` becomes `-k ":causal:true: and :dtype:float16:"`, and every
case carries the keywords `:axis:value:` of its values. The colons on both ends make the match
exact: `head_dim=64` does not select `head_dim=640`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tlmatrix.spec.values import label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.spec.values import Value

__all__ = ["case_keywords", "rewrite_keywords"]

_WORD = re.compile(r"[\w.+:\-]+(?:=[\w.+:\-]+)+")
_BETWEEN = re.compile(r"-(?=[A-Za-z_]\w*=)")


def rewrite_keywords(expression: str) -> str:
    """The expression with each `axis=value` (or `a=x-b=y`, or a whole id) in pytest's grammar."""
    return _WORD.sub(lambda found: _rewritten(found.group()), expression)


def case_keywords(values: Mapping[str, Value]) -> set[str]:
    """What `rewrite_keywords` looks for."""
    return {f":{name}:{label(value)}:" for name, value in values.items()}


def _rewritten(word: str) -> str:
    pairs = [pair.replace("=", ":", 1) for pair in _BETWEEN.split(word)]
    terms = [f":{pair}:" for pair in pairs]
    return terms[0] if len(terms) == 1 else f"({' and '.join(terms)})"
