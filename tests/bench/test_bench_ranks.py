"""Several ranks are timed in step, a process each, and the slowest counts; here on CPUs."""

import pytest

import tlmatrix
from tlmatrix.backend import backend_named
from tlmatrix.bench.candidates import variants_of
from tlmatrix.bench.engine import Machine, _slowest, bench
from tlmatrix.bench.results import State
from tlmatrix.bench.timing import Samples, Schedule, Timing, interleaved
from tlmatrix.commands.bench import bench_cases

pytestmark = pytest.mark.usefixtures("preloaded")

CODE = """
import time

import torch
import torch.distributed as dist

calls = []


def gathered_product(a, b, context):
    assert context == ["made once"]
    parts = [torch.empty_like(a) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, a)
    return torch.cat(parts) @ b


def context():
    return ["made once"]


def one_rank_late(a, b, context, rank):
    if rank == 1:
        time.sleep(0.03)
    return gathered_product(a, b, context)


def wrong(a, b, context):
    return gathered_product(a, b, context) + 1


def not_here(a, b):
    raise NotImplementedError("no such product")


def raising_on_one(a, b, context, rank):
    if rank == 1:
        raise RuntimeError("no such shard")
    return torch.zeros(a.shape[0] * 2, b.shape[1])
"""
SPEC = """
name: gathered
problem: gemm
entry: products_on_ranks:gathered_product
context: products_on_ranks:context
axes: {world: [2], dtype: [float32], m: [64], n: [32], k: [48]}
shards: {a: {dim: m}, b: {dim: n}, c: {dim: n}}
bench:
  cases: [{m: 128}]
  baselines: [torch, "products_on_ranks:one_rank_late", "products_on_ranks:wrong",
              "products_on_ranks:not_here", "products_on_ranks:raising_on_one"]
  configs: {block: [64]}
"""
SCHEDULE = Schedule(seconds=0.2, least=5, most=5, warmup=1)


def timed(folder, backend, schedule=SCHEDULE):
    (folder / "products_on_ranks.py").write_text(CODE)
    path = folder / "gathered.yaml"
    path.write_text(SPEC)
    spec = tlmatrix.load(path)

    def never(_call, _lead):
        raise AssertionError("ranks have clocks of their own")

    machine = Machine(backend_named(backend), never)
    (case,) = bench(spec, list(bench_cases(spec)), machine, schedule=schedule)
    return case


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("timed")


@pytest.fixture(scope="module")
def case(folder):
    return timed(folder, "processes")


def test_each_implementation_is_judged_before_its_times_count(case):
    told = {each.name: (each.state, each.reason) for each in case.implementations}
    assert told["entry"] == told["one_rank_late"] == (State.TIMED, "")
    assert told["wrong"][0] is State.WRONG
    assert told["not_here"] == (State.NOT_APPLICABLE, "no such product")
    assert told["raising_on_one"] == (State.FAILED, "rank 1: RuntimeError: no such shard")
    assert told["torch"][0] is State.NOT_APPLICABLE
    assert "runs on one GPU" in told["torch"][1]
    (forward,) = case.passes
    assert set(forward.samples) == {"entry", "one_rank_late"}
    assert case.values["m"] == 128


def test_ranks_start_together_and_the_slowest_counts(case):
    (forward,) = case.passes
    assert all(len(samples.device) == 5 for samples in forward.samples.values())
    # Rank 1 sleeps for 30 ms before it takes part; rank 0 only waits for it.
    assert min(forward.samples["one_rank_late"].device) >= 30
    assert forward.time("entry").median < forward.time("one_rank_late").median


def test_slowest_rank_sets_the_time_of_a_round():
    slow = _slowest([Samples([1.0, 5.0], 0.1), Samples([2.0, 3.0], 0.4)])
    assert (slow.device, slow.host) == ([2.0, 5.0], 0.4)


def test_ranks_take_the_same_number_of_rounds():
    schedule = Schedule(seconds=0.1, least=1, most=100, warmup=1)
    quick = interleaved(
        {"a": int}, lambda _c, _l: Timing(0.5, 0.1), schedule, agree=lambda _t: 10.0
    )
    assert len(quick["a"].device) == 10


def test_simulated_ranks_are_left_out_with_the_reason(folder):
    (told, *_rest) = timed(folder, "interpreter").implementations
    assert (told.state, told.reason) == (State.NOT_APPLICABLE, "simulated ranks cannot be timed")


def test_fewer_gpus_than_ranks_are_named(folder, monkeypatch):
    from tlmatrix.backend.gpus import ALL_GPUS
    from tlmatrix.bench import engine
    from tlmatrix.distributed.executors import ProcessExecutor

    monkeypatch.setenv(ALL_GPUS, "0")
    monkeypatch.setattr(
        engine,
        "executor_for",
        lambda _backend, roots, seconds: ProcessExecutor("cuda", roots, seconds),
    )
    (told, *_rest) = timed(folder, "processes").implementations
    assert told.state is State.NOT_APPLICABLE
    assert "needs 2 GPUs, and 1 is visible" in told.reason


def test_names_of_implementations_stay_apart(folder):
    spec = tlmatrix.load(folder / "gathered.yaml")
    ways = variants_of(spec, ["a.b:op", "c.d:op"], sweep=True)
    assert [way.name for way in ways] == ["entry", "op", "c.d:op", "block=64"]
