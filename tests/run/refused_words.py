"""A helper that only raises."""


def refuse(message):
    """Raises a ValueError."""
    raise ValueError(message)
