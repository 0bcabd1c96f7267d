"""An entry whose refusals list the valid page sizes, and some that do not keep what they list."""

SIZES = (16, 32, 64, 128, 256)


def _checked(page, accepted):
    if page not in accepted:
        raise ValueError(f"page must be one of {', '.join(map(str, SIZES))}, got {page}")


def accepting(x, page=16):
    _checked(page, SIZES)
    return 2 * x


def refusing_the_largest(x, page=16):
    _checked(page, SIZES[:-1])
    return 2 * x


def refusing_the_largest_here(x, page=16):
    _checked(page, SIZES)
    if page == SIZES[-1]:
        raise ValueError(f"page={page} needs a GPU of compute capability 9.0, got 8.0")
    return 2 * x


def wrong_with_the_largest(x, page=16):
    _checked(page, SIZES)
    return 3 * x if page == SIZES[-1] else 2 * x


def doubled(x):
    return 2 * x
