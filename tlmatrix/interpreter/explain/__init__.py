"""Why an element has its value: `interpret(trace=...)`, and what `tlmatrix explain` prints.

`model` has what ran and the answer, `replay` runs a launch again and follows one element back
(`slicing` has the rules, and measures the rounding of earlier launches), `text` prints the answer.
"""

from __future__ import annotations

from .model import Explanation, Launch, LaunchLog, NotMadeError, Trace
from .replay import explain_element, writers_of

__all__ = [
    "Explanation",
    "Launch",
    "LaunchLog",
    "NotMadeError",
    "Trace",
    "explain_element",
    "writers_of",
]
