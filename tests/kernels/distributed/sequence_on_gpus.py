"""What a process of a rank runs in test_sequence_on_gpus.py: attention over all GPUs."""

import torch

from tlmatrix_kernels.distributed.attention import sequence_attention
from tlmatrix_kernels.distributed.attention.reference import gathered_attention


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
