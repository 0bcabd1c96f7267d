"""What a worker is told: settings that survive the way to it, and which cases share kernels."""

import json
from pathlib import Path

from tlmatrix.plugin.settings import Settings
from tlmatrix.plugin.sharing import Sharing


def test_settings_reach_a_worker_as_they_were():
    settings = Settings(
        tier="quick",
        backend="compile",
        seed=7,
        coverage="off",
        unsupported="skip",
        architectures=("sm_80", "sm_90a"),
        results_path=Path("/kept/run.jsonl"),
        passed_before=frozenset({("/specs/a.yaml", "rows=1"), ("/specs/a.yaml", "rows=5")}),
    )
    assert Settings.from_plain(json.loads(json.dumps(settings.plain()))) == settings


def test_workers_answer_the_controller_that_asks_and_the_first_answer_stays():
    controller = Sharing()
    silent = Sharing(controller.file)
    silent.write({"a": "1"}, "gw0")
    assert controller.read() == {}
    controller.ask()
    for worker in ("gw0", "gw1"):
        Sharing(controller.file).write({"a": worker}, worker)
    assert controller.read() == {"a": "gw0"}
    controller.remove()
    assert controller.read() == {}
    assert not Path(controller.file).parent.exists()
