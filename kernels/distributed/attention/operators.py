"""Sequence-parallel attention as PyTorch operators: an autograd function that runs a plan.

A rank has shards of q, k and v, and its queries attend to all keys of their sequences: first to the
local ones, while the copy engine pulls the remote ones (`exchange`). Dense batches are packed
sequences of equal length. `plan` decides which queries attend to which keys in which step;
`kernels` has the algorithm.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.autograd.function import once_differentiable

from tlmatrix_kernels.alignment import aligned
from tlmatrix_kernels.attention.combine import UNIT, combine_parts
from tlmatrix_kernels.attention.kernels import prepare
from tlmatrix_kernels.attention.rows import padded_start
from tlmatrix_kernels.attention.tiles import COMBINE_THREADS, PASS_ROWS, PREPARE_THREADS
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
from tlmatrix_kernels.distributed.validate import check_context
from tlmatrix_kernels.dtypes import dtype_name


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
    variant="pipelined",
):
    """Softmax attention of sequences of equal length, each sharded over the ranks.

    Every rank of the context's group calls it with the same options and its own shards; see
    `shards` for the partition.

    Args:
        q: [batch, rows_q, heads, head_dim], this rank's queries; float16 or bfloat16.
        k: [batch, rows_k, kv_heads, head_dim], this rank's keys; heads must be a multiple of
            kv_heads, and query head h uses kv head ``h // (heads // kv_heads)``.
        v: [batch, rows_k, kv_heads, head_dim_v]. Both head dimensions are multiples of 8 up to 256.
        context: see `create_context`; one context serves calls of any shapes.
        causal: query i of the whole sequence attends to the keys
            ``j <= i + seqlen_k - seqlen_q``.
        sharding: "zigzag" or "contiguous".
        scale: multiplies q k^T; positive; ``head_dim ** -0.5`` if None.
        seqlen_q: length of the whole query sequence; required if ranks have different numbers of
            rows.
        seqlen_k: the same for keys.
        steps: 1 fetches all keys before attention starts; 2 attends to the local keys while the
            remote ones are fetched; more attend to the remote keys in steps - 1 groups, as they
            arrive. None selects the one with the shortest predicted time.
        variant: "pipelined", or "specialized" to compare, on Hopper only: the first forward kernel
            has explicit warp specialization, and each step is a launch of its own.

    Returns:
        out [batch, rows_q, heads, head_dim_v] in the dtype of q; and lse [batch, heads, rows_q]
        float32, the natural logarithm of the softmax denominator of each row, without a gradient.
        A query with no visible key has out 0, lse -inf and zero gradients.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
    """
    check_context(context)
    call = check_dense_call(
        q, k, v, seqlen_q, seqlen_k, causal, scale, sharding, steps, variant,
        context.rank, context.world,
    )  # fmt: skip
    _agree("sequence_attention", call, q, context)
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
    variant="pipelined",
):
    """Softmax attention of packed sequences of any lengths, each sharded over the ranks.

    Args:
        q: [rows_q, heads, head_dim], this rank's shards of all sequences, concatenated.
        k: [rows_k, kv_heads, head_dim].
        v: [rows_k, kv_heads, head_dim_v].
        cu_seqlens_q: [batch + 1] int32, the bounds of the *whole* query sequences, the same on
            every rank. Sequences may be empty, or shorter than the number of ranks.
        cu_seqlens_k: the same for keys.
        max_seqlen_q: an upper bound of the *whole* query lengths, not of those of the shards;
            computed if None.
        max_seqlen_k: the same for keys.
        context: as in `sequence_attention`.
        causal: within a whole sequence, query i attends to the keys
            ``j <= i + seqlen_k - seqlen_q``.
        sharding: as in `sequence_attention`.
        scale: as in `sequence_attention`.
        steps: as in `sequence_attention`.
        variant: as in `sequence_attention`.

    The check of cu_seqlens copies them to the host, which synchronizes with the GPU: once per
    tensor, and again after PyTorch has modified it in place.

    Returns:
        out [rows_q, heads, head_dim_v] in the dtype of q; and lse [heads, rows_q] float32.

    Raises:
        ValueError: an invalid argument; the message names it, the rule and the value.
        RuntimeError: a CUDA graph is captured, which would keep the lengths of the capture.
    """
    check_context(context)
    if context.capturing():
        raise RuntimeError(
            "sequence_attention_varlen cannot be captured to a CUDA graph: its copies depend on "
            "the lengths in cu_seqlens, which a replay would not read again; call it outside of "
            "the graph, or use sequence_attention if all lengths are equal"
        )
    call = check_packed_call(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        causal, scale, sharding, steps, variant, context.rank, context.world,
    )  # fmt: skip
    _agree("sequence_attention_varlen", call, q, context)
    return _SequenceAttention.apply(q, k, v, call, context)


def _agree(operator: str, call: Call, q: torch.Tensor, context: Context) -> None:
    """Raises ValueError unless all ranks make this call, with shards of the same sequences."""
    if not context.direct:
        raise RuntimeError(
            f"{operator} needs GPUs with NVLink between them: without, use "
            "tlmatrix_kernels.distributed.attention.reference"
        )
    attention = call.attention
    sizes = {
        "query lengths": call.lengths_q,
        "key lengths": call.lengths_k,
        "heads": q.shape[-2],
        "groups": attention.groups,
        "head_dim": attention.head_dim,
        "head_dim_v": attention.head_dim_v,
        "dtype": attention.dtype,
        "causal": attention.causal,
        "scale": attention.scale,
        "sharding": call.sharding.order,
        "steps": call.steps,
    }
    hint = "seqlen_q= and seqlen_k= are the lengths of whole sequences"
    context.agree(operator, sizes, hint=hint if operator == "sequence_attention" else "")


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
    if device.type == "cuda":  # pinned, so that the copy is asynchronous
        return table.pin_memory().to(device, non_blocking=True)
    return table


@dataclass(frozen=True)
class Tables:
    """The tables of a plan that its kernels read, on the device.

    ``cu_runs`` is [runs + 1] int32; ``ranges`` has a table (see `kernels`) for each launch of each
    step, in which runs without a range come last. ``overlapped`` is the table of
    `overlapped_forward`, if the plan fits one launch.
    """

    cu_runs: torch.Tensor
    ranges: tuple[tuple[torch.Tensor, ...], ...]
    overlapped: torch.Tensor | None


@lru_cache(maxsize=256)
def device_tables(call: Call, steps: int, device: torch.device) -> Tables:
    """The tables of a call's plan for its own rank."""
    plan = all_plans(call, steps)[call.rank]
    ends = [row + length for row, length in plan.runs]
    found = [
        tuple(_table(_table_rows(launch, plan), device) for launch in step.launches)
        for step in plan.steps
    ]
    overlapped = _table(_overlapped_rows(plan), device) if plan.in_one_launch else None
    return Tables(_table([[0, *ends]], device)[0], tuple(found), overlapped)


def _table_rows(launch: Launch, plan: Plan) -> list[list[int]]:
    seen = [(each.run, [each.row, each.length, each.offset]) for each in launch.ranges]
    present = {run for run, _ in seen}
    seen += [(run, [0, 0, 0]) for run in range(len(plan.runs)) if run not in present]
    return [
        [*plan.runs[run], padded_start(plan.runs[run][0], run), *columns] for run, columns in seen
    ]


def _overlapped_rows(plan: Plan) -> list[list[int]]:
    """A table row per run, those with the most keys first; local keys follow the fetched ones."""
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
    q, plan: Plan, tables: Tables, fetch: Fetch, call: Call, one_launch: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute out and lse of this rank's queries.

    In one launch if `one_launch`, the plan allows it and kernels may wait for flags.
    """
    attention = call.attention
    launches = _launches(plan, tables)
    specialized = call.variant == "specialized"
    possible = len(launches) > 1 and tables.overlapped is not None and fetch.may_wait
    if one_launch and possible and not specialized:
        return _attend_overlapped(q, plan, tables.overlapped, fetch, call)
    shape, heads = (*q.shape[:2], attention.head_dim_v), q.shape[1]
    before, pulled = (), False
    for place, (number, launch, ranges) in enumerate(launches):
        if number and not pulled:
            fetch.pull()
            pulled = True
        keys = fetch.wait(number)
        last = place == len(launches) - 1
        out = torch.empty(shape, dtype=q.dtype if last else torch.float32, device=q.device)
        lse = torch.empty((heads, q.shape[0]), dtype=torch.float32, device=q.device)
        first = kernels.forward_specialized if specialized else kernels.forward
        build = kernels.forward_continued if before else first
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


def _attend_overlapped(
    q, plan: Plan, ranges: torch.Tensor, fetch: Fetch, call: Call
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in one launch, whose blocks wait for remote keys."""
    static = _static(call, *(launch for step in plan.steps for launch in step.launches))
    kernel = overlapped_forward(call.attention.dtype, *static)
    remote = fetch.pull_in_slices()
    out = q.new_empty((*q.shape[:2], call.attention.head_dim_v))
    lse = torch.empty(q.shape[1::-1], dtype=torch.float32, device=q.device)
    kernel(
        q, remote.keys.k, remote.keys.v, ranges, remote.ready, out, lse,
        remote.epoch, remote.slice_bits, remote.fetched, plan.longest_run, call.attention.scale,
    )  # fmt: skip
    return out, lse


def _sum_parts(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The sum of float32 parts [count, *like.shape], added in order, in the dtype of `like`."""
    count, total = parts.shape[0], torch.empty_like(like)
    if count == 0 or like.numel() == 0:
        return total.zero_()
    kernel = combine_parts(count, dtype_name(like.dtype), COMBINE_THREADS)
    kernel(parts.view(count, -1, UNIT), total.view(-1, UNIT))
    return total


class _Gradients:
    """The gradients of one call: arguments shared by its launches, and the sum of dq."""

    def __init__(self, q, do, out, lse, plan: Plan, tables: Tables, call: Call) -> None:
        self.q, self.do, self.plan, self.tables, self.call = q, do, plan, tables, call
        rows = (q.shape[1], padded_start(q.shape[0], len(plan.runs)))
        self.row_lse, self.row_delta = (
            torch.empty(rows, dtype=torch.float32, device=q.device) for _ in range(2)
        )
        self.dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        if q.numel():
            dtype, head_dim_v = call.attention.dtype, call.attention.head_dim_v
            kernel = prepare("thd", dtype, head_dim_v, PASS_ROWS, PREPARE_THREADS)
            kernel(out, do, lse, tables.cu_runs, self.row_lse, self.row_delta, plan.longest_run)

    def _run(self, build, step: int, keys: KeyValues, sums: tuple, longest) -> None:
        """Run one kernel per launch of a step; `longest(launch)` bounds the rows of its grid."""
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
        """Add to dq the part of a step's keys."""
        self._run(kernels.query_sums, step, keys, (self.dq,), lambda _: self.plan.longest_run)


class _SequenceAttention(torch.autograd.Function):
    """Autograd function of packed shards q, k and v to out and lse."""

    @staticmethod
    def forward(ctx, q, k, v, call: Call, context: Context):
        q, own = aligned(q), KeyValues(aligned(k), aligned(v))
        schedule = _schedule(call, q, k)
        steps = schedule.steps
        plans = all_plans(call, steps)
        plan = plans[call.rank]
        fetch = Fetch(plans, own, context)
        tables = device_tables(call, steps, q.device)
        out, lse = attend(q, plan, tables, fetch, call, schedule.one_launch)
        fetch.wait_all()
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

        fetch = Fetch(plans, own, context)
        work = _Gradients(q, aligned(do), out, lse, plan, tables, call)
        parts = allocate_parts(plans, call.rank, own) if any(wants_pair) else None
        if parts is not None and plan.steps[0].launches:
            work.add_keys(0, own, parts.part(parts.ranks.index(call.rank)))
        if wants_queries:
            work.add_queries(0, own)
        fetch.pull()
        side = None
        if parts is not None and call.sharding.world > 1:
            buffer, sums = remote_sums(plans, call.rank, own, context)
            for number in range(1, len(plan.steps)):
                keys = fetch.wait(number)
                here = sums.rows(plan.first_row(number), plan.steps[number].rows)
                here.zero_()
                work.add_keys(number, keys, here)
            side = pull_parts(parts, plans, buffer, own, context)
        if wants_queries:
            for number in range(1, len(plan.steps)):
                work.add_queries(number, fetch.wait(number))
        fetch.wait_all()
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        dq = _sum_parts(work.dq[None], q) if wants_queries else None
        dk, dv = (
            _sum_parts(parts, like) if wanted else None
            for parts, like, wanted in zip(
                (parts.k, parts.v) if parts else (None, None), (k, v), wants_pair, strict=True
            )
        )
        return dq, dk, dv, None, None
