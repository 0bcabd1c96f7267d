"""What judges the kernels of an adopted repository, as text and as a page of HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jinja2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tlmatrix.draft.adopt import Row

_ORDER = ("findings", "errors", "judged", "incomplete", "not drafted")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ name }}: adopted</title><style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
  color: #222; background: #fff; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; } th { text-align: left; }
th, td { padding: .3em .8em .3em 0; border-bottom: 1px solid #ddd; vertical-align: top;
  overflow-wrap: anywhere; }
td.n { text-align: right; } code { font-size: 13px; overflow-wrap: anywhere; }
.judged { color: #17692f; } .findings { color: #b3261e; } .errors, .incomplete { color: #8a5a00; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616; }
  th, td { border-color: #333; } .judged { color: #6cc28a; } .findings { color: #ff8a80; }
  .errors, .incomplete { color: #e0b050; } }
</style></head><body>
<h1>{{ name }}</h1>
<p>{% for status, count in counts %}<b class="{{ status }}">{{ count }} {{ status }}</b>{{
  ", " if not loop.last }}{% endfor %} of {{ rows|length }} kernels and operators</p>
<table><tr><th style="width: 34%">target</th><th style="width: 8%">status</th>
<th style="width: 8%">cases</th><th style="width: 20%">judged by</th><th></th></tr>
{% for row in rows %}<tr><td><code>{{ row.target }}</code></td>
<td class="{{ row.status.split()[0] }}">{{ row.status }}</td>
<td class="n">{% if row.cases %}{{ row.cases }}{% if row.failed %}, {{ row.failed }} failed{% endif
  %}{% endif %}</td><td><code>{{ row.reference }}</code></td><td>{{ row.note }}{% if row.failed
  %} <code>tlmatrix run {{ row.spec }}</code>{% endif %}</td></tr>
{% endfor %}</table></body></html>
"""


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each row, those with findings first, and its note below."""
    for row in _ordered(rows):
        cases = f"  {row.cases - row.failed} of {row.cases} cases passed" if row.cases else ""
        by = f", judged by {row.reference}" if row.reference else ""
        yield f"{row.status:12}{row.target}{cases}{by}"
        if row.note:
            yield f"            {row.note}"


def write_page(path: Path, root: Path, rows: Sequence[Row]) -> None:
    """Write the rows as one page that needs no network."""
    counts = [(status, sum(row.status == status for row in rows)) for status in _ORDER]
    template = jinja2.Environment(autoescape=True).from_string(_PAGE)
    name = root.resolve().name
    shown = [each for each in counts if each[1]]
    page = template.render(name=name, rows=_ordered(rows), counts=shown)
    path.write_text(page, encoding="utf-8")


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (_ORDER.index(row.status), row.target))
