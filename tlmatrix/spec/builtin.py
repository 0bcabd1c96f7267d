"""The specs of this project's own kernels, which its wheel carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tlmatrix.words import suggestion


def builtin_specs() -> dict[str, Path]:
    """The specs by name; empty if the kernels are not installed.

    In a wheel they are in `tlmatrix_kernels/specs`; in a clone, beside the kernels.
    """
    found = find_spec("tlmatrix_kernels")
    if found is None or found.origin is None:
        return {}
    kernels = Path(found.origin).parent
    folders = (kernels / "specs", kernels.parent / "specs")
    folder = next((each for each in folders if each.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def builtin_path(name: str) -> Path:
    """The path of a built-in spec.

    Raises:
        LookupError: there is no spec of that name.
    """
    known = builtin_specs()
    if name not in known:
        raise LookupError(
            f"no built-in spec {name!r}{suggestion(name, sorted(known), 'There are')}"
        )
    return known[name]
