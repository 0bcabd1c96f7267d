"""The table of a run on the backend `compile`: kernels by name and architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tlmatrix.run.result import CaseResult

_COLUMNS = ("kernels", "failed", "registers", "spills", "shared", "tensor", "seconds")


def kernel_table(results: Iterable[CaseResult]) -> Table | None:
    """Make the table; None if no kernel was compiled.

    A row has the number of distinct kernels of one name (dtypes, head dims, masks) and the maximum
    that any of them uses: registers and bytes of spills per thread, bytes of shared memory and
    columns of tensor memory per block. `seconds` is the time of lowering and assembling all of
    them, also of those from the cache.
    """
    rows = kernel_rows(results)
    if not rows:
        return None
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("kernel", overflow="fold")
    table.add_column("arch", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        failed = Text(str(row["failed"]), style="bold red" if row["failed"] else "")
        table.add_row(
            row["kernel"],
            row["arch"],
            str(row["kernels"]),
            failed,
            *(str(row[name]) for name in ("registers", "spills", "shared_memory", "tensor_memory")),
            f"{row['seconds']:.0f}",
        )
    return table


def kernel_rows(results: Iterable[CaseResult]) -> list[dict[str, Any]]:
    """The rows of the table, by kernel name and architecture; equal kernels count once."""
    seen: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for result in results:
        for fact in result.kernels:
            by_key = seen.setdefault((fact["kernel"], fact["arch"]), {})
            parts = by_key.setdefault(fact["key"], [])
            if fact not in parts:
                parts.append(fact)
    rows = []
    for (kernel, arch), by_key in sorted(seen.items(), key=lambda item: _order(*item[0])):
        facts = [fact for parts in by_key.values() for fact in parts]
        row: dict[str, Any] = {"kernel": kernel, "arch": arch, "kernels": len(by_key)}
        row["failed"] = sum(bool(parts[0].get("error")) for parts in by_key.values())
        for name in ("registers", "spills", "shared_memory", "tensor_memory"):
            row[name] = max(fact.get(name, 0) for fact in facts)
        row["seconds"] = sum(
            parts[0].get("lower_seconds", 0) + parts[0].get("assemble_seconds", 0)
            for parts in by_key.values()
        )
        rows.append(row)
    return rows


def _order(kernel: str, arch: str) -> tuple[str, int, str]:
    digits = "".join(letter for letter in arch if letter.isdigit())
    return (kernel, int(digits or 0), arch)
