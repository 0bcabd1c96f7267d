"""The mutants: small declared edits of the project's own kernels, one YAML file a kind.

A file describes one kind of bug and lists its mutants:

    kind: lengths
    summary: Lengths off the tile, empty ones, and sequences that end before their tile does.
    mutants:
      - name: last_query_tile_stored_whole
        file: attention/rows.py             # below kernels/
        below: def can_store_tile(          # optional: the edit is the first one below this line
        before: return row + rows <= self.length if followed else True
        after: return True
        stands_for: a packed kernel stores its last tile whole, into the next sequence
        seen: https://github.com/...        # optional: a report of the same bug elsewhere
        silent: true                        # optional: no bit differs at aligned shapes
        specs: [gemm_sm90]                  # optional: of the specs that reach it, those to run
        compile: sm_90a                     # optional: compile for this architecture, run nothing
        when: world > 1                     # optional, with compile: the cases to compile

`before` must occur exactly once in the file, or be the first below a line that does: an edit that
no longer applies is an error, so that no mutant equals the original.

A mutant with `compile` changes machine code and no interpreted result: a finding of `codegen` must
show it. Of its specs' quick tier the cases are compiled that `when`, an expression over the axes,
selects, since a kernel takes seconds.
"""

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["FOLDER", "KERNELS", "KINDS", "ROOT", "Mutant", "MutantError", "load_mutants", "plant"]

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
FOLDER = Path(__file__).resolve().parent
KINDS = (
    "lengths", "masks", "sinks", "heads", "memory", "precision", "state", "barriers", "gemm",
    "decode", "ranks", "alignment", "order", "nonfinite", "autograd", "values", "codegen",
    "options", "starts", "schedules", "arguments", "sizes",
)  # fmt: skip
_REQUIRED = {"name", "file", "before", "after", "stands_for"}
_FIELDS = _REQUIRED | {"below", "seen", "silent", "specs", "compile", "when"}


class MutantError(ValueError):
    """A declared mutant is malformed, or does not apply to the kernels as they are."""


@dataclass(frozen=True)
class Mutant:
    """One mutant; the module docstring describes the fields."""

    kind: str
    name: str
    file: str
    before: str
    after: str
    stands_for: str
    seen: str | None = None
    below: str | None = None
    silent: bool = False
    specs: tuple[str, ...] = ()
    compile: str | None = None
    when: str | None = None

    @property
    def id(self) -> str:
        """`lengths/last_query_tile_stored_whole`."""
        return f"{self.kind}/{self.name}"

    @property
    def key(self) -> str:
        """A hash of the edit, and of what is compiled."""
        compiled = (self.compile, self.when or "") if self.compile else ()
        text = "\0".join((self.file, self.below or "", self.before, self.after, *compiled))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def place(self, text: str) -> int:
        """The offset of the edit in the text of its file.

        Raises:
            MutantError: the edit occurs nowhere, or more than once.
        """
        start = 0
        if self.below is not None:
            if text.count(self.below) != 1:
                raise self._stale(f"`below` occurs {text.count(self.below)} times, not once")
            start = text.index(self.below)
            if self.before not in text[start:]:
                raise self._stale("`before` does not occur below `below`")
        elif text.count(self.before) != 1:
            raise self._stale(f"`before` occurs {text.count(self.before)} times, not once")
        return text.index(self.before, start)

    def applied(self, text: str) -> str:
        """The mutated text of its file."""
        start = self.place(text)
        return text[:start] + self.after + text[start + len(self.before) :]

    def lines(self, text: str) -> range:
        """The lines that the edit touches, counted from 1."""
        start = self.place(text)
        first = text.count("\n", 0, start) + 1
        return range(first, first + self.before.rstrip("\n").count("\n") + 1)

    def _stale(self, why: str) -> MutantError:
        return MutantError(f"{self.id}: {why} in {self.file}; mend or replace the mutant")


def load_mutants(folder: Path = FOLDER, kinds: Sequence[str] = KINDS) -> list[Mutant]:
    """All declared mutants of a folder, kind by kind.

    Raises:
        MutantError: a file or an entry is malformed, or a name is taken twice.
    """
    found: list[Mutant] = []
    for kind in kinds:
        path = folder / f"{kind}.yaml"
        data = yaml.safe_load(path.read_text())
        if set(data) != {"kind", "summary", "mutants"} or data["kind"] != kind:
            raise MutantError(f"{path.name}: must have kind: {kind}, a summary and mutants")
        for number, entry in enumerate(data["mutants"]):
            found.append(_mutant(entry, kind, f"{path.name}: mutant {number + 1}"))
    names = [mutant.name for mutant in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise MutantError(f"names must differ: {', '.join(sorted(twice))}")
    return found


def _mutant(entry: dict, kind: str, place: str) -> Mutant:
    place = f"{place} ({entry.get('name', 'no name')})"
    if unknown := set(entry) - _FIELDS:
        raise MutantError(f"{place}: unknown fields {', '.join(sorted(unknown))}")
    if missing := _REQUIRED - set(entry):
        raise MutantError(f"{place}: lacks {', '.join(sorted(missing))}")
    if not entry.get("seen", "https://").startswith("https://"):
        raise MutantError(f"{place}: seen must be a link")
    if entry["before"] == entry["after"]:
        raise MutantError(f"{place}: before and after are the same")
    if "when" in entry and "compile" not in entry:
        raise MutantError(f"{place}: when selects the cases to compile, and needs compile")
    return Mutant(kind=kind, **{**entry, "specs": tuple(entry.get("specs", ()))})


def plant(mutant: Mutant | None, folder: Path) -> Path:
    """Copy the kernels to `folder` as the package `tlmatrix_kernels`, with the bug in them.

    Returns:
        the folder to put on the import path. The working tree is never touched.
    """
    package = folder / "tlmatrix_kernels"
    shutil.copytree(KERNELS, package, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = package / mutant.file
        path.write_text(mutant.applied(path.read_text()))
    return folder
