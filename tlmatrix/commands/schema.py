"""`tlmatrix schema`: prints the JSON Schema of specs, for editors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tlmatrix.exit_codes import ExitCode
from tlmatrix.spec.schema import SCHEMA_PATH

if TYPE_CHECKING:
    import argparse

    from tlmatrix.config import Config


def schema(_arguments: argparse.Namespace, _config: Config) -> ExitCode:
    """Print the stored schema."""
    print(SCHEMA_PATH.read_text(encoding="utf-8"), end="")
    return ExitCode.OK
