"""What becomes of a kernel when one of its waits, arrives or commits is deleted.

`synchronizations` lists them, `without` deletes one, and `fates` says of each deletion whether it
is reported under some schedule, changes nothing under any, or gives other values unreported:

    with tvm.target.Target({"kind": "cuda", "arch": "sm_100a"}):
        func = factory.get_tir(...)
    for found in fates(func, (q, k, v), arch="sm_100a", out_idx=[-1]):
        assert found.fate in ("reported", "no effect"), found
"""

from dataclasses import dataclass

import torch

from tlmatrix.interpreter import interpret, interpreted, scheduled
from tlmatrix.interpreter.errors import SynchronizationError

SCHEDULES = 50
SYNCHRONIZING = frozenset(
    {
        "tl.mbarrier_wait_parity",
        "tirx.ptx_arrive_barrier",
        "tirx.ptx_arrive_barrier_expect_tx",
        "tl.mbarrier_expect_tx",
        "tl.wait_wgmma",
        "tl.warpgroup_wait",
        "tirx.ptx_wait_group",
        "tirx.ptx_commit_group",
        "tl.ptx_cp_async_barrier_noinc",
        "tl.tma_store_arrive",
        "tl.tma_store_wait",
        "tl.tcgen05_mma_arrive",
        "tl.named_barrier_arrive",
        "tirx.tvm_storage_sync",
    }
)


@dataclass(frozen=True)
class Deletion:
    """One synchronizing statement, and what becomes of the kernel without it.

    Attributes:
        number: its number in the order of the source.
        name: the operation of the IR.
        place: the user's file and line.
        fate: "reported", "no effect", or the schedule under which values are wrong.
        report: the report, where there is one.
    """

    number: int
    name: str
    place: str
    fate: str = ""
    report: str = ""


def _name(statement):
    call = statement.value
    return str(getattr(getattr(call, "op", None), "name", ""))


def _line_of(statement):
    import tilelang.ir

    span = tilelang.ir.get_stmt_span(statement)
    return "None" if span is None else f"{span.source_name.name}:{span.line}"


def synchronizations(func, names=SYNCHRONIZING):
    """The synchronizing statements of a PrimFunc, in the order of its source."""
    from tilelang import tvm

    found = []

    def visit(node):
        if isinstance(node, tvm.tirx.Evaluate) and _name(node) in names:
            found.append(Deletion(len(found), _name(node), _line_of(node)))

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def without(func, number, names=SYNCHRONIZING):
    """A PrimFunc with one of its synchronizing statements deleted."""
    from tilelang import tvm

    seen = 0

    def delete(node):
        nonlocal seen
        if _name(node) in names:
            seen += 1
            if seen - 1 == number:
                return tvm.tirx.Evaluate(tvm.tirx.const(0, "int32"))
        return None

    body = tvm.tirx.stmt_functor.ir_transform(func.body, None, delete, ["tirx.Evaluate"])
    return func.with_body(body)


def schedules(count=SCHEDULES):
    """The first schedules to try: both that choose nothing, then random ones."""
    names = ["eager", "lazy"] + ["random", "adversarial"] * count
    return [(name, seed) for seed, name in enumerate(names)][:count]


def _outputs(result, inputs):
    results = (
        () if result is None else (result,) if isinstance(result, torch.Tensor) else tuple(result)
    )
    return (*results, *inputs)


def _call(kernel, inputs):
    """All that a call writes: its outputs, and its inputs after it."""
    copies = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)
    return _outputs(kernel(*copies), copies)


def _equal(one, other):
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def fate(func, inputs, right, *, arch, out_idx, count=SCHEDULES):
    """What becomes of a changed kernel: a fate of `Deletion`, and the report or an empty text.

    Args:
        func: the PrimFunc.
        inputs: arguments of a call.
        right: all that the unchanged kernel writes, see `_call`.
        arch: the architecture it is interpreted for.
        out_idx: which parameters are allocated and returned.
        count: how many schedules to try.
    """
    with interpret(arch=arch):
        kernel = interpreted(func, out_idx=out_idx)
        for schedule, seed in schedules(count):
            with scheduled(schedule, seed=seed):
                try:
                    got = _call(kernel, inputs)
                except SynchronizationError as error:
                    return "reported", str(error)
            if not _equal(got, right):
                return f"wrong under {schedule} {seed}", ""
    return "no effect", ""


def fates(func, inputs, *, arch="sm_90a", out_idx=(-1,), count=SCHEDULES, names=SYNCHRONIZING):
    """Every deletion of a kernel with its fate.

    Args:
        func: the PrimFunc, traced with the kernel's own `pass_configs`.
        inputs: arguments of a call, one that needs every stage more than once.
        arch: the architecture it is interpreted for.
        out_idx: which parameters are allocated and returned.
        count: how many schedules to try.
        names: the operations to delete.
    """
    with interpret(arch=arch):
        right = _call(interpreted(func, out_idx=list(out_idx)), inputs)
    found = []
    for one in synchronizations(func, names):
        what, report = fate(
            without(func, one.number, names),
            inputs,
            right,
            arch=arch,
            out_idx=list(out_idx),
            count=count,
        )
        found.append(Deletion(one.number, one.name, one.place, what, report))
    return found


__all__ = [
    "SCHEDULES",
    "SYNCHRONIZING",
    "Deletion",
    "fate",
    "fates",
    "schedules",
    "synchronizations",
    "without",
]
