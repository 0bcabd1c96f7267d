"""The finding for a case that exceeded its time limit, while running or while compiling."""

from tlmatrix.run.limits import out_of_time

LAUNCHED = '  File "/site-packages/torch/cuda/__init__.py", line 1162, in synchronize\n'
COMPILED = '  File "/site-packages/tilelang/engine/lower.py", line 300, in lower\n'


def test_timeout_of_a_running_case():
    finding = out_of_time(["a\n", "b\n", "c\n", "d\n", LAUNCHED])
    assert finding.title == "the case exceeded its time limit"
    assert finding.detail == "b\nc\nd\n" + LAUNCHED.rstrip()
    assert finding.hint.startswith("an endless loop, or a barrier at which no thread arrives")
    assert out_of_time().detail is None


def test_timeout_of_a_compiling_case():
    finding = out_of_time([COMPILED, '  File "subprocess.py", line 1209, in communicate\n'])
    assert finding.title == "the case exceeded its time limit while compiling"
    assert "run fewer processes" in finding.hint
