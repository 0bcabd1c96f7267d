"""An entry that refuses arguments in every way: raise, assert, and functions that only raise."""

from refused_words import refuse


def tiled(x, tile=(1, 1), words="", part=None):
    _check(tile, words, part)
    return x * tile[0]


def _check(tile, words, part):
    if len(tile) != 2 or 16 % tile[0] or 64 % tile[1]:
        raise ValueError(f"tile must divide (16, 64), got {tile}")
    assert isinstance(words, str) and len(words) < 4, "words must be a short text"  # noqa: PT018
    if part == "all":
        refuse("part must not be all")
    if part is not None:
        if part < 0:
            refuse("part must be at least 0")
        else:
            raise ValueError("part must be absent")


def never_called(part):
    if part:
        raise ValueError("never")


def scaled(x, tile=(1, 1)):
    return x * tile[0]
