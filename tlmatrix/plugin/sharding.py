"""Selects the cases of a shard in a session."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tlmatrix.plugin.groups_file import ShardPlan
from tlmatrix.run.shards import Unit, assign, plan_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tlmatrix.plugin.items import CaseItem
    from tlmatrix.plugin.state import State


def cases_of_other_shards(cases: Sequence[CaseItem], state: State) -> dict[CaseItem, None]:
    """The cases that do not belong to the session's shard; its plan is kept in `state`.

    The names of cases are relative to pytest's root folder, so that they are equal on machines
    with another path of the project.
    """
    shard = state.settings.shard
    assert shard is not None
    units = {
        item: Unit(item.nodeid, item.nodeid.partition("::")[0], item.kernels) for item in cases
    }
    seconds = _recorded_seconds(state.settings.times, state.config.rootpath)
    shards = assign(list(units.values()), seconds, shard.count)
    own: dict[str, list[str]] = defaultdict(list)
    for item, unit in units.items():
        if shards[unit.node] == shard.number:
            own[item.shown_path].append(item.name)
    groups = {unit.group for unit in units.values()}
    state.shard_plan = ShardPlan(plan_name(shards), dict(own), len(units), len(groups))
    return {item: None for item, unit in units.items() if shards[unit.node] != shard.number}


def _recorded_seconds(file: str, root: Path) -> Mapping[str, float]:
    """The recorded durations of cases by node id."""
    if not file:
        return {}
    from tlmatrix.run.records import RecordsError, read_records

    try:
        records = read_records(Path(file))
    except (OSError, RecordsError):
        return {}
    folder = Path(records.header.folder)
    found = {}
    for result in records.results:
        path = (folder / result.path).resolve()
        if result.seconds and path.is_relative_to(root):
            found[f"{path.relative_to(root).as_posix()}::{result.case}"] = result.seconds
    return found
