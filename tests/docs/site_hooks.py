"""MkDocs hooks of mkdocs.yml."""

import re

__all__ = ["on_page_markdown"]

_FENCE = re.compile(r'^(```console)( \w+="\w+")+$', re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Remove the options that the tests of the documents read from fences, such as `exit="1"`."""
    return _FENCE.sub(r"\1", markdown)
