"""Why an element has its value: `interpret(trace=...)`, and what `tlmatrix explain` prints.

`launches` keeps what ran, `replay` runs a launch again and follows one element back (`slicing` has
the rules), `carried` measures the rounding of earlier launches, `model` is the answer and `text`
its printed form.
"""

from __future__ import annotations

from .launches import Launch, LaunchLog, NotMadeError
from .model import Explanation, Trace
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
