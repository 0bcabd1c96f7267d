"""Sequence-parallel attention as PyTorch operators: an autograd function over a plan's launches.

A rank has shards of q, k and v, and attends with its queries to all keys of their sequences: first
to its own, where they are, meanwhile the copy engine pulls the others (`exchange`). Dense batches
are packed ones with sequences of one length. Nothing is computed here: which queries see which keys
when is in `plan`, the mathematics in `kernels`.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.autograd.function import once_differentiable

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.attention import packed
from tlmatrix_kernels.attention.combine import UNIT, combine_parts
from tlmatrix_kernels.attention.rows import PADDING, padded_start
from tlmatrix_kernels.attention.tiles import COMBINE_THREADS, PREPARE_THREADS
from tlmatrix_kernels.distributed.attention import kernels
from tlmatrix_kernels.distributed.attention.exchange import (
    Fetch,
    KeyValues,
    allocate_parts,
    pull_parts,
    remote_sums,
)
from tlmatrix_kernels.distributed.attention.overlapped_forward import overlapped_forward
from tlmatrix_kernels.distributed.attention.plan import Launch, Plan, plan_for
from tlmatrix_kernels.distributed.attention.schedule import Schedule, choose_schedule
from tlmatrix_kernels.distributed.attention.validate import (
    Call,
    check_dense_call,
    check_packed_call,
)
from tlmatrix_kernels.distributed.context import Context
from tlmatrix_kernels.dtypes import dtype_name

__all__ = [
    "all_plans",
    "attend",
    "device_tables",
    "sequence_attention",
    "sequence_attention_varlen",
]


def sequence_attention(
    q,
    k,
    v,
    *,
    context: Context,
    causal=False,
    sharding="zigzag",
    scale=None,
    seqlen_q=None,
    seqlen_k=None,
    steps=None,
):
    """Softmax attention of sequences that all have the same lengths, split over the ranks.

    Every rank of the context's group calls it with the same options and its own shards; see
    `shards` for who has which rows.

    Args:
        q: [batch, rows_q, heads, head_dim], this rank's queries; float16 or bfloat16.
        k: [batch, rows_k, kv_heads, head_dim], this rank's keys; heads must be a multiple of
            kv_heads, and query head h reads kv head ``h // (heads // kv_heads)``.
        v: [batch, rows_k, kv_heads, head_dim_v]. Both head dimensions are multiples of 8 up to 256.
        context: see `create_context`; one serves any number of calls, of any shapes.
        causal: query i of the whole sequence sees the keys ``j <= i + seqlen_k - seqlen_q``.
        sharding: "zigzag" or "contiguous".
        scale: what q k^T is multiplied by; ``head_dim ** -0.5`` if None. Positive.
        seqlen_q: length of the whole sequence of queries. If None every rank has as many rows; it
            must be given where they differ.
        seqlen_k: the same of keys.
        steps: with 1 all keys are fetched before any is attended to, with 2 those of other ranks
            are fetched while the rank's own are attended to, with more they are attended to in
            steps - 1 groups, as they arrive. None takes what should be the fastest.

    Returns:
        out [batch, rows_q, heads, head_dim_v] in the dtype of q; and lse [batch, heads, rows_q]
        float32, the natural logarithm of each row's softmax denominator, which carries no gradient.
        A query that sees no key has out 0, lse -inf and gradients 0.

    Raises:
        ValueError: naming the argument, the rule it breaks and the value it has.
    """
    call = check_dense_call(
        q, k, v, seqlen_q, seqlen_k, causal, scale, sharding, steps, context.rank, context.world
    )
    batch = q.shape[0]
    packed_rows = (tensor.flatten(0, 1) for tensor in (q, k, v))
    out, lse = _SequenceAttention.apply(*packed_rows, call, context)
    lse = lse.view(lse.shape[0], batch, q.shape[1]).transpose(0, 1).contiguous()
    return out.view(batch, q.shape[1], *out.shape[1:]), lse


def sequence_attention_varlen(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    *,
    context: Context,
    causal=False,
    sharding="zigzag",
    scale=None,
    steps=None,
):
    """Softmax attention of packed sequences of any lengths, each split over the ranks.

    Args:
        q: [rows_q, heads, head_dim], this rank's share of every sequence, one after the other.
        k: [rows_k, kv_heads, head_dim].
        v: [rows_k, kv_heads, head_dim_v].
        cu_seqlens_q: [batch + 1] int32, the bounds of the *whole* sequences of queries, the same on
            every rank. Sequences may be empty, or shorter than there are ranks.
        cu_seqlens_k: the same of keys.
        max_seqlen_q: no *whole* sequence may be longer (that of a rank's shares, shorter by the
            number of ranks, is refused); the longest length is taken if None.
        max_seqlen_k: the same of keys.
        context: as in `sequence_attention`, like the rest.
        causal: within its whole sequence, query i sees the keys ``j <= i + seqlen_k - seqlen_q``.
        sharding: see there.
        scale: see there.
        steps: see there.

    Checking cu_seqlens copies them to the host, which waits for the GPU: once for each tensor, and
    again when PyTorch has changed it in place.

    Returns:
        out [rows_q, heads, head_dim_v] in the dtype of q; and lse [heads, rows_q] float32.

    Raises:
        ValueError: naming the argument, the rule it breaks and the value it has.
        RuntimeError: a CUDA graph is captured, which would keep the lengths of the capture.
    """
    if context.capturing():
        raise RuntimeError(
            "sequence_attention_varlen cannot be captured to a CUDA graph: who fetches which keys "
            "follows from the lengths in cu_seqlens, which a replay would not read again; call it "
            "outside of the graph, or use sequence_attention where all lengths are equal"
        )
    call = check_packed_call(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        causal, scale, sharding, steps, context.rank, context.world,
    )  # fmt: skip
    return _SequenceAttention.apply(q, k, v, call, context)


def _schedule(call: Call, q: torch.Tensor, k: torch.Tensor) -> Schedule:
    if call.steps is not None:
        return Schedule(call.steps)
    return choose_schedule(
        call.sharding,
        call.lengths_q,
        call.lengths_k,
        call.attention.causal,
        (q.shape[1], k.shape[1]),
        (call.attention.head_dim, call.attention.head_dim_v),
    )


def all_plans(call: Call, steps: int) -> tuple[Plan, ...]:
    """The plans of all ranks."""
    return tuple(
        plan_for(call.sharding, rank, call.lengths_q, call.lengths_k, call.attention.causal, steps)
        for rank in range(call.sharding.world)
    )


def _table(rows: list[list[int]], device: torch.device) -> torch.Tensor:
    table = torch.tensor(rows, dtype=torch.int32)
    if device.type == "cuda":  # from pinned memory the host need not wait
        return table.pin_memory().to(device, non_blocking=True)
    return table


@dataclass(frozen=True)
class Tables:
    """What the kernels of a plan read of it, on their device.

    ``cu_runs`` is [runs + 1] int32, ``ranges`` a table (see `kernels`) for each launch of each
    step; in it the runs that the launch has no range for come last. ``arrival`` is the table of
    `arrival`, if the plan is for one launch.
    """

    cu_runs: torch.Tensor
    ranges: tuple[tuple[torch.Tensor, ...], ...]
    arrival: torch.Tensor | None


@lru_cache(maxsize=256)
def device_tables(call: Call, steps: int, device: torch.device) -> Tables:
    """The tables of a call's plan for its own rank."""
    plan = all_plans(call, steps)[call.rank]
    ends = [row + length for row, length in plan.runs]
    found = [
        tuple(_table(_table_rows(launch, plan), device) for launch in step.launches)
        for step in plan.steps
    ]
    arrival = _table(_arrival_rows(plan), device) if plan.in_one_launch else None
    return Tables(_table([[0, *ends]], device)[0], tuple(found), arrival)


def _table_rows(launch: Launch, plan: Plan) -> list[list[int]]:
    seen = [(each.run, [each.row, each.length, each.offset]) for each in launch.ranges]
    there = {run for run, _ in seen}
    seen += [(run, [0, 0, 0]) for run in range(len(plan.runs)) if run not in there]
    return [
        [*plan.runs[run], padded_start(plan.runs[run][0], run), *columns] for run, columns in seen
    ]


def _arrival_rows(plan: Plan) -> list[list[int]]:
    """A row for each run, those with the most keys first; own keys are behind those that come."""
    found = {run: [0] * 5 for run in range(len(plan.runs))}
    for number, step in enumerate(plan.steps):
        for each in (each for launch in step.launches for each in launch.ranges):
            if number:
                found[each.run][3:] = each.row, each.length
            else:
                found[each.run][:3] = plan.fetched + each.row, each.length, each.offset
    rows = [[*plan.runs[run], padded_start(plan.runs[run][0], run), *found[run]] for run in found]
    return sorted(rows, key=lambda row: -row[4] - row[7])


def _static(call: Call, *launches: Launch) -> tuple:
    attention, causal = call.attention, any(launch.causal for launch in launches)
    return attention.groups, attention.head_dim, attention.head_dim_v, causal


def _launches(plan: Plan, tables: Tables) -> list[tuple[int, Launch, torch.Tensor]]:
    """(step, launch, its table), in order."""
    return [
        (number, launch, table)
        for number, step in enumerate(plan.steps)
        for launch, table in zip(step.launches, tables.ranges[number], strict=True)
    ]


def attend(
    q, plan: Plan, tables: Tables, fetched: Fetch, call: Call, one_launch: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and lse of this rank's queries; in one launch where it is asked for and can be."""
    attention = call.attention
    launches = _launches(plan, tables)
    can_be = len(launches) > 1 and tables.arrival is not None and fetched.may_wait
    if one_launch and can_be:
        return _attend_on_arrival(q, plan, tables.arrival, fetched, call)
    shape, heads = (*q.shape[:2], attention.head_dim_v), q.shape[1]
    before, pulled = (), False
    for place, (number, launch, ranges) in enumerate(launches):
        if number and not pulled:
            fetched.pull()
            pulled = True
        keys = fetched.wait(number)
        last = place == len(launches) - 1
        out = torch.empty(shape, dtype=q.dtype if last else torch.float32, device=q.device)
        lse = torch.empty((heads, q.shape[0]), dtype=torch.float32, device=q.device)
        build = kernels.forward_continued if before else kernels.forward
        kernel = build(
            attention.dtype, attention.dtype if last else "float32", *_static(call, launch)
        )
        kernel(
            q, keys.k, keys.v, ranges, *before, out, lse,
            plan.longest_run, attention.scale,
        )  # fmt: skip
        before = (out, lse)
    if before:
        return before
    nothing = torch.full((heads, q.shape[0]), float("-inf"), device=q.device)
    return torch.zeros(shape, dtype=q.dtype, device=q.device), nothing


def _attend_on_arrival(
    q, plan: Plan, ranges: torch.Tensor, fetched: Fetch, call: Call
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in one launch, whose blocks wait for what is fetched."""
    static = _static(call, *(launch for step in plan.steps for launch in step.launches))
    kernel = overlapped_forward(call.attention.dtype, *static)
    coming = fetched.pull_in_slices()
    out = q.new_empty((*q.shape[:2], call.attention.head_dim_v))
    lse = torch.empty(q.shape[1::-1], dtype=torch.float32, device=q.device)
    kernel(
        q, coming.keys.k, coming.keys.v, ranges, coming.ready, out, lse,
        coming.epoch, coming.slice_bits, coming.fetched, plan.longest_run, call.attention.scale,
    )  # fmt: skip
    return out, lse


def _added(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Float32 parts [count, *like.shape], added up in their order, in the dtype of `like`."""
    count, total = parts.shape[0], torch.empty_like(like)
    if count == 0 or like.numel() == 0:
        return total.zero_()
    kernel = combine_parts(count, dtype_name(like.dtype), COMBINE_THREADS)
    kernel(parts.view(count, -1, UNIT), total.view(-1, UNIT))
    return total


class _Gradients:
    """The gradients of one call: what its launches have in common, and the sum of dq."""

    def __init__(self, q, do, out, lse, plan: Plan, tables: Tables, call: Call) -> None:
        self.q, self.do, self.plan, self.tables, self.call = q, do, plan, tables, call
        rows = (q.shape[1], padded_start(q.shape[0], len(plan.runs)))
        self.row_lse, self.row_delta = (
            torch.empty(rows, dtype=torch.float32, device=q.device) for _ in range(2)
        )
        self.dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        if q.numel():
            dtype, head_dim_v = call.attention.dtype, call.attention.head_dim_v
            kernel = packed.prepare(dtype, head_dim_v, PADDING, PREPARE_THREADS)
            kernel(out, do, lse, tables.cu_runs, self.row_lse, self.row_delta, plan.longest_run)

    def _run(self, build, step: int, keys: KeyValues, sums: tuple, longest) -> None:
        """One kernel for each launch of a step; `longest` says how many rows its blocks walk."""
        scale = self.call.attention.scale
        launches = self.plan.steps[step].launches
        for launch, ranges in zip(launches, self.tables.ranges[step], strict=True):
            kernel = build(self.call.attention.dtype, *_static(self.call, launch))
            kernel(
                self.q, keys.k, keys.v, self.do, self.row_lse, self.row_delta,
                ranges, *sums, longest(launch), scale,
            )  # fmt: skip

    def add_keys(self, step: int, keys: KeyValues, sums: KeyValues) -> None:
        """Add to the sums of dk and dv of a step's keys."""
        self._run(kernels.key_sums, step, keys, (sums.k, sums.v), lambda launch: launch.longest)

    def add_queries(self, step: int, keys: KeyValues) -> None:
        """Add to dq what a step's keys give."""
        self._run(kernels.query_sums, step, keys, (self.dq,), lambda _: self.plan.longest_run)


class _SequenceAttention(torch.autograd.Function):
    """Packed shards of q, k and v to out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, call: Call, context: Context):
        q, own = aligned(q), KeyValues(aligned(k), aligned(v))
        schedule = _schedule(call, q, k)
        steps = schedule.steps
        plans = all_plans(call, steps)
        plan = plans[call.rank]
        fetched = Fetch(plans, own, context)
        tables = device_tables(call, steps, q.device)
        out, lse = attend(q, plan, tables, fetched, call, schedule.one_launch)
        fetched.wait_all()
        ctx.call, ctx.context, ctx.steps = call, context, steps
        ctx.save_for_backward(q, own.k, own.v, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, _dlse):
        q, k, v, out, lse = ctx.saved_tensors
        call, context, own = ctx.call, ctx.context, KeyValues(k, v)
        plans, tables = all_plans(call, ctx.steps), device_tables(call, ctx.steps, q.device)
        plan = plans[call.rank]
        wants_queries, *wants_pair = ctx.needs_input_grad[:3]

        fetched = Fetch(plans, own, context)
        work = _Gradients(q, aligned(do), out, lse, plan, tables, call)
        shares = allocate_parts(plans, call.rank, own) if any(wants_pair) else None
        if shares is not None and plan.steps[0].launches:
            work.add_keys(0, own, shares.of(shares.ranks.index(call.rank)))
        if wants_queries:
            work.add_queries(0, own)
        fetched.pull()
        side = None
        if shares is not None and call.sharding.world > 1:
            buffer, sums = remote_sums(plans, call.rank, own, context)
            for number in range(1, len(plan.steps)):
                keys = fetched.wait(number)
                here = sums.rows(plan.first_row(number), plan.steps[number].rows)
                here.zero_()
                work.add_keys(number, keys, here)
            side = pull_parts(shares, plans, buffer, own, context)
        if wants_queries:
            for number in range(1, len(plan.steps)):
                work.add_queries(number, fetched.wait(number))
        fetched.wait_all()
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        dq = _added(work.dq[None], q) if wants_queries else None
        dk, dv = (
            _added(parts, like) if wanted else None
            for parts, like, wanted in zip(
                (shares.k, shares.v) if shares else (None, None), (k, v), wants_pair, strict=True
            )
        )
        return dq, dk, dv, None, None
