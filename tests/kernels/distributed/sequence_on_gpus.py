"""What a process of a rank runs in test_sequence_on_gpus.py: attention over all GPUs."""

import torch
from sequence_cases import Case

from tlmatrix_kernels.distributed.attention import sequence_attention, sequence_attention_varlen
from tlmatrix_kernels.distributed.attention.reference import gathered_attention

# order, causal, lengths of queries, lengths of keys, heads and kv heads (always groups of two:
# compiling is nearly all of the time, and the specs' nightly tiers have other groups)
CASES = [
    ("zigzag", True, (700, 300), (700, 300), (4, 2)),
    ("contiguous", True, (129, 0, 65), (129, 0, 65), (2, 1)),
    ("zigzag", False, (260,), (1024,), (6, 3)),
    ("contiguous", False, (50, 3), (7, 600), (2, 1)),
    ("zigzag", True, (130, 9), (260, 0), (4, 2)),
]


def _packed(context, steps):
    """Forward and backward of packed batches are the definition, one after the other."""
    for order, causal, lengths_q, lengths_k, heads in CASES:
        case = Case.of(order, context.world, lengths_q, lengths_k, causal, heads, (64, 128))
        leaves, do = case.shards(context.rank)
        leaves = [t.detach().cuda().requires_grad_() for t in leaves]
        out, lse = sequence_attention_varlen(
            *leaves, *(bounds.cuda() for bounds in case.bounds), context=context,
            causal=causal, sharding=order, steps=steps,
        )  # fmt: skip
        gradients = torch.autograd.grad(out, leaves, do.cuda())
        case.compare_rank(context.rank, [t.cpu() for t in (out, lse, *gradients)])


# A test each, for each compiles some eight kernels one after the other.
def packed_in_one_step(context):
    _packed(context, 1)


def packed_in_two_steps(context):
    _packed(context, 2)


def packed_in_a_step_a_rank(context):
    _packed(context, context.world)


def packed_as_is_chosen(context):
    _packed(context, None)


def back_to_back_with_stragglers(context):
    """Calls of changing data and shapes, not synchronised, give what each gives alone."""
    source = torch.Generator(device="cuda").manual_seed(7 + context.rank)
    calls = []
    for call in range(60):
        rows, causal = (64, 512, 130)[call % 3], call % 2 == 0
        shapes = ((1, rows, 4, 128), (1, rows, 2, 128), (1, rows, 2, 128))
        leaves = [
            torch.randn(s, generator=source, device="cuda", dtype=torch.bfloat16) for s in shapes
        ]
        if call % 7 == context.rank:
            torch.cuda._sleep(3_000_000)
        leaves = [t.requires_grad_() for t in leaves]
        out, _ = sequence_attention(*leaves, context=context, causal=causal, steps=1 + call % 2)
        calls.append((leaves, causal, out, torch.autograd.grad(out, leaves, out.detach())))
    for leaves, causal, out, gradients in calls:
        wide = [t.detach().float().requires_grad_() for t in leaves]
        want, _ = gathered_attention(*wide, context=context, causal=causal)
        wanted = torch.autograd.grad(want, wide, out.detach().float())
        for got, expected in zip((out, *gradients), (want, *wanted), strict=True):
            worst = (got.float() - expected).abs().max()
            assert worst <= 0.02 * expected.abs().max(), (causal, got.shape, float(worst))


def replayed_from_a_graph(context):
    """A captured call, replayed with other data and beside calls that are not."""
    source = torch.Generator(device="cuda").manual_seed(11 + context.rank)
    shapes = ((1, 256, 4, 64), (1, 256, 2, 64), (1, 256, 2, 64))
    held = [torch.empty(s, device="cuda", dtype=torch.bfloat16) for s in shapes]

    def fill():
        for tensor in held:
            tensor.normal_(generator=source)

    def call():
        return sequence_attention(*held, context=context, causal=True, steps=2)[0]

    fill()
    for _ in range(2):  # kernels are compiled, buffers have their size
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for turn in range(12):
        fill()
        if turn % 5 == context.rank:
            torch.cuda._sleep(2_000_000)
        graph.replay()
        got = captured.clone()
        # Each step is a launch of its own in the graph, so sums are rounded otherwise.
        torch.testing.assert_close(got, call(), rtol=2**-6, atol=2**-7, msg=f"turn {turn}")
