"""The input of workers: settings as plain data, and the groups of cases."""

import json
from pathlib import Path

from tlmatrix.options.run_options import RunOptions
from tlmatrix.plugin.groups_file import GroupsFile, ShardPlan
from tlmatrix.plugin.settings import Settings


def test_settings_survive_conversion_to_plain_data():
    settings = Settings(
        RunOptions({"backend": "compile", "seed": 7, "arch": ["sm_80", "sm_90a"]}),
        results_path=Path("/kept/run.jsonl"),
        passed_before=frozenset({("/specs/a.yaml", "rows=1"), ("/specs/a.yaml", "rows=5")}),
    )
    assert Settings.from_plain(json.loads(json.dumps(settings.to_plain()))) == settings


def test_the_first_worker_writes_the_groups_after_the_controller_created_the_file():
    controller = GroupsFile()
    unused = GroupsFile(controller.path)
    unused.write({"a": "1"}, ShardPlan("", {}), "gw0")
    assert controller.read() == {}
    controller.create()
    for worker in ("gw0", "gw1"):
        GroupsFile(controller.path).write({"a": worker}, ShardPlan(worker, {"b": 1}), worker)
    assert controller.read() == {"a": "gw0"}
    assert controller.plan() == ShardPlan("gw0", {"b": 1})
    controller.remove()
    assert controller.read() == {}
    assert not Path(controller.path).parent.exists()
