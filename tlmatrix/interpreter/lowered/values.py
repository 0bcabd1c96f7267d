"""Codes of values, and of memory that variables point to, in the source of device functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tlmatrix.dtypes import TILE_DTYPES

_VECTOR = re.compile(r"(\w*?[a-z0-9])x(\d+)$")


@dataclass(frozen=True)
class Val:
    """The code of a value.

    Attributes:
        code: an expression.
        dtype: of an element.
        width: elements of a vector; 1 of a scalar.
        uniform: whether it is a Python number, the same in all lanes.
        fixed: whether it only depends on lanes, blocks and parameters.
    """

    code: str
    dtype: str
    width: int = 1
    uniform: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class Place:
    """Memory that a variable points to.

    Attributes:
        kind: "global", "shared", "local", "barrier" or "descriptor" (a TMA descriptor).
        name: of the variable.
        code: of local memory its array; of barriers the number of the first.
        offset: bytes from the start of the shared memory of a block.
        dtype: of its elements.
    """

    kind: str
    name: str
    code: str = ""
    offset: int = 0
    dtype: str = ""


def split(dtype: str) -> tuple[str, int]:
    """A dtype of the IR as that of an element and how many there are."""
    found = _VECTOR.match(dtype)
    return (found[1], int(found[2])) if found else (dtype, 1)


def is_float(dtype: str) -> bool:
    """Whether elements are floating-point numbers."""
    return dtype != "handle" and dtype in TILE_DTYPES and TILE_DTYPES[dtype].floating
