"""A case that is out of time says where it was, and whether that was still compiling."""

from tlmatrix.run.timeouts import out_of_time

LAUNCHED = '  File "/site-packages/torch/cuda/__init__.py", line 1162, in synchronize\n'
COMPILED = '  File "/site-packages/tilelang/engine/lower.py", line 300, in lower\n'


def test_what_waits_for_a_gpu_may_hang():
    finding = out_of_time(["a\n", "b\n", "c\n", "d\n", LAUNCHED])
    assert finding.title == "the case did not end in its time"
    assert finding.detail == "b\nc\nd\n" + LAUNCHED.rstrip()
    assert finding.hint.startswith("a loop that cannot end or a barrier nobody arrives at")
    assert out_of_time().detail is None


def test_what_compiles_is_slow_and_does_not_hang():
    finding = out_of_time([COMPILED, '  File "subprocess.py", line 1209, in communicate\n'])
    assert finding.title == "the case did not end in its time, and was still compiling"
    assert "fewer processes at once" in finding.hint
