"""Simulated CUDA graphs: what is captured runs again as it was, what CUDA refuses is refused."""

import pytest
import ranked_kernels as kernels
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from tlmatrix import simulate
from tlmatrix.interpreter import DeadlockError

N = 64
SEEDS = range(6)


def captured(call, times=1):
    """A graph of a call, and what the call returned."""
    for _ in range(times):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def alone(body, **options):
    """What a program of one rank gives."""
    return simulate(lambda _rank: body(), world=1, **options).results[0]


def test_operations_are_run_again_with_what_their_inputs_hold_then():
    def body():
        x, y = torch.zeros(4), torch.zeros(4)

        def call():
            z = x * 2
            y.copy_(z)
            y.add_(1)
            ones = torch.ones(4)
            ones -= y
            return ones

        graph, result = captured(call)
        assert result.isnan().all(), "a capture computes nothing"
        assert y.tolist() == [1.0] * 4, "nor does it write: this is of the call before"
        found = []
        for value in (3.0, 5.0):
            x.fill_(value)
            graph.replay()
            found.append((y.tolist(), result.tolist()))
        return found

    assert alone(body) == [([7.0] * 4, [-6.0] * 4), ([11.0] * 4, [-10.0] * 4)]


def test_a_random_operation_gives_other_values_each_time():
    def body():
        graph, result = captured(lambda: torch.rand(8))
        graph.replay()
        first = result.tolist()
        graph.replay()
        return first != result.tolist()

    assert alone(body)


@pytest.mark.parametrize("ordered", [True, False])
def test_streams_that_join_are_captured_with_what_orders_them(ordered):
    def body():
        x, y = torch.zeros(N), torch.zeros(N)
        side = torch.cuda.Stream()

        def call():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y.copy_(x)
            if ordered:
                torch.cuda.current_stream().wait_stream(side)
            z = torch.empty(N)
            z.copy_(y)
            torch.cuda.current_stream().wait_stream(side)
            return z

        graph, z = captured(call, times=0)
        found = []
        for value in (1.0, 2.0):
            x.fill_(value)
            graph.replay()
            found.append(z.unique().tolist())
        return found

    for seed in SEEDS:
        run = simulate(lambda _rank: body(), world=1, seed=seed)
        if ordered:
            assert (run.results, run.reports) == ([[[1.0], [2.0]]], ())
        else:
            assert "of a graph" in str(run.reports[0])


def test_a_graph_does_not_overlap_itself():
    def body():
        x, y = torch.zeros(N), torch.zeros(N)
        graph, _ = captured(lambda: y.add_(x))
        y.zero_()
        x.fill_(1)
        streams = [torch.cuda.Stream() for _ in range(4)]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.replay()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        return y.unique().tolist()

    for seed in SEEDS:
        run = simulate(lambda _rank: body(), world=1, seed=seed, stragglers=True)
        assert (run.results, run.reports) == ([[4.0]], ())


def test_collectives_are_captured():
    def program(rank):
        x, out = torch.zeros(4), torch.zeros(8)

        def call():
            dist.all_reduce(x)
            dist.all_gather(list(out.chunk(2)), x, async_op=True).wait()
            return out + 1

        graph, result = captured(call)
        x.fill_(rank + 1.0)
        graph.replay()
        return result.tolist()

    assert simulate(program, world=2).results == [[4.0] * 8] * 2


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda x, _: x.sum().item(), "_local_scalar_dense"),
        (lambda x, _: x.tolist(), "waiting for a stream"),
        (lambda x, _: x.nonzero(), "nonzero"),
        (lambda _, __: torch.cuda.synchronize(), "waiting for a stream"),
        (lambda _, side: side.synchronize(), None),
        (lambda _, side: torch.cuda.current_stream().wait_stream(side), "StreamCaptureIsolation"),
        (lambda _, __: dist.all_gather_object([None], 1), "operation not permitted"),
        (
            lambda x, _: symm_mem._SymmetricMemory.stream_write_value32(x.view(torch.uint32), 0, 1),
            "memset32 can be captured",
        ),
        (lambda _, __: torch.cuda.CUDAGraph().capture_begin(), "the beginning of a capture"),
    ],
)
def test_what_cuda_refuses_while_it_captures_is_refused(what, words):
    def body():
        x, side = torch.ones(4), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        if words is None:
            with torch.cuda.graph(graph):
                what(x, side)
            return "allowed"
        with pytest.raises(RuntimeError, match=words), torch.cuda.graph(graph):
            what(x, side)
        assert not torch.cuda.is_current_stream_capturing()
        return x.tolist()  # the stream is as before

    assert alone(body) in ([1.0] * 4, "allowed")


def test_work_that_nothing_waits_for_ends_no_capture():
    def body():
        x, side = torch.ones(4), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()

        def on_the_side():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.empty(4).copy_(x)

        words = r"does not wait for the copy at .*test_graphs.py"
        with pytest.raises(RuntimeError, match=words), torch.cuda.graph(graph):
            on_the_side()
        with pytest.raises(RuntimeError, match="has not been captured"):
            graph.replay()
        return True

    assert alone(body)


def test_a_captured_event_cannot_be_waited_for_outside():
    def body():
        graph, event = torch.cuda.CUDAGraph(), torch.cuda.Event()
        with torch.cuda.graph(graph):
            torch.ones(4).add_(1)
            event.record()
        with pytest.raises(RuntimeError, match="cudaErrorCapturedEvent"):
            torch.cuda.current_stream().wait_event(event)
        with pytest.raises(RuntimeError, match="operation not permitted"):
            event.synchronize()
        return True

    assert alone(body)


class Sender:
    """Rank 0 sends rows to rank 1, whose kernel waits for a flag: an epoch that the host counts."""

    def __init__(self, rank, compare):
        self.rank, self.compare, self.epoch = rank, compare, 0
        self.own, self.data = kernels.symmetric(2 * N)
        self.flags, self.signals = kernels.symmetric(8, dtype=torch.int32)

    def call(self, x):
        """What rank 0 has, on rank 1."""
        self.epoch += 1
        half = self.epoch % 2 * N
        out = torch.empty(N)
        self.data.barrier()
        if self.rank == 0:
            there = self.data.get_buffer(1, (N,), torch.float32, half)
            flags = self.signals.get_buffer(1, (8,), torch.int32)
            kernels.post(function="tlm_block_fetch_add_release_sys")(x, there, flags, 0, 1)
        else:
            mine = self.data.get_buffer(1, (N,), torch.float32, half)
            wait = {} if self.compare == "ge" else {"function": "tlm_wait_eq_acquire_sys"}
            kernels.take(**wait)(mine, out, self.flags, 0, self.epoch)
        return out


def replays(compare, count=3):
    """A program that captures a call of `Sender`, and calls between the replays."""

    def program(rank):
        sender, x = Sender(rank, compare), torch.zeros(N)
        graph, out = captured(lambda: sender.call(x), times=2)
        for turn in range(count):
            x.fill_(float(turn))
            if turn:
                sender.call(x)
            graph.replay()
        return out[0].item()

    return program


def test_an_epoch_of_the_host_in_a_captured_launch_is_a_race():
    """The flag has reached the captured epoch by the second replay: no wait is left."""
    for seed in SEEDS:
        reports = simulate(replays("ge"), world=2, seed=seed).reports
        told = [str(report) for report in reports if "of a graph" in str(report)]
        assert any("kernel take" in text and "kernel post" in text for text in told), told


def test_calls_that_are_not_captured_do_not_race():
    def program(rank):
        sender, x = Sender(rank, "ge"), torch.zeros(N)
        return [sender.call(x.fill_(float(turn)))[0].item() for turn in range(4)]

    for seed in SEEDS:
        run = simulate(program, world=2, seed=seed, stragglers=True)
        assert (run.results[1], run.reports) == ([0.0, 1.0, 2.0, 3.0], ())


def test_a_flag_compared_for_equality_with_a_captured_epoch_hangs():
    """The call between two replays has counted it further."""
    with pytest.raises(DeadlockError, match="to be exactly 3: it is 5"):
        simulate(replays("eq"), world=2)
