"""What the sanitizers of lowered code report of mutants of it: deleted synchronization, and others.

    python benchmarks/lowered_deletions.py [SPEC...] [--arch sm_80,sm_90a] [--each N] [--json FILE]

Each distinct kernel that the smoke tier of a spec launches is lowered, and changed at one place at
a time: an operation that synchronizes is removed, a vector access is made twice as wide, a term of
a swizzled address or the swizzle of a TMA descriptor is changed. A mutant is *reported* by a
sanitizer or by an error, *refused* when its program is written, or gives *wrong values*. One that
is neither reported nor wrong is run one warp after another under several schedules
(`lowered_schedules`): if its values never differ from those of the kernel itself it is *without
effect*, otherwise *missed*. The exit code is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lowered_launches import Recorded, copied, recorded
from lowered_schedules import SCHEDULES, Schedule, run_scheduled

from tlmatrix.interpreter.errors import InterpreterError, Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.lowered.emit import Emitter, split
from tlmatrix.interpreter.lowered.execution import function_of, run
from tlmatrix.interpreter.lowered.lowering import HANDLERS, DescriptorCall, LoweredKernel
from tlmatrix.interpreter.lowered.machine import Watching
from tlmatrix.interpreter.reports import DEFAULT_SANITIZERS, ReportSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SPECS = Path(__file__).parents[1] / "specs"
_CACHE = Path("/tmp/lowered-deletions")  # noqa: S108 - a cache that any run may make anew
_REMOVED = {
    "tirx.tvm_storage_sync": "barrier",
    "tl.sync_warp": "barrier of a warp",
    "tirx.ptx_commit_group": "commit of cp.async",
    "tirx.ptx_wait_group": "wait for cp.async",
    "tl.mbarrier_wait_parity": "wait for an mbarrier",
    "tirx.ptx_arrive_barrier": "arrival",
    "tirx.ptx_arrive_barrier_expect_tx": "arrival with bytes",
    "tl.mbarrier_expect_tx": "expected bytes",
    "tl.fence_proxy_async": "proxy fence",
    "tl.warpgroup_arrive": "wgmma fence",
    "tl.warpgroup_commit_batch": "commit of wgmma",
    "tl.warpgroup_wait": "wait for wgmma",
    "tl.wait_wgmma": "wait for wgmma",
    "tl.tma_store_arrive": "commit of TMA stores",
    "tl.tma_store_wait": "wait for TMA stores",
}
_OUTCOMES = ("reported", "wrong values", "refused", "without effect", "missed")

Path_ = tuple[Any, ...]
"""Where a node is: the names of fields, and positions in tuples, from the root."""


@dataclass(frozen=True)
class Mutation:
    """A change of a kernel at one place: `replaced` makes the new node of the old one.

    Attributes:
        function: the number of the device function, or of the step of the host code.
        host: whether it is a step of the host code.
    """

    kind: str
    function: int
    path: Path_
    replaced: Callable[[Any], Any]
    host: bool = False


@dataclass
class Row:
    """What became of a mutant."""

    spec: str
    arch: str
    kernel: str
    kind: str
    place: str
    outcome: str
    detail: str
    seconds: float


# Places of nodes ----------------------------------------------------------------------------------


def _below(node: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any, Any]]:
    """Places, nodes, and the user's line of all nodes below one; parents first."""
    if isinstance(node, tuple):
        for k, each in enumerate(node):
            yield from _below(each, (*path, k))
    elif isinstance(node, ir.Stmt | ir.Expr):
        yield path, node, getattr(node, "location", None)
        for field in dataclasses.fields(node):
            if field.name not in ("var", "loop_var"):
                yield from _below(getattr(node, field.name), (*path, field.name))


def _changed(node: Any, path: Path_, replaced: Callable[[Any], Any]) -> Any:
    """A tree with another node at a place."""
    if not path:
        return replaced(node)
    first, *rest = path
    if isinstance(node, tuple):
        return (*node[:first], _changed(node[first], tuple(rest), replaced), *node[first + 1 :])
    return replace(node, **{first: _changed(getattr(node, first), tuple(rest), replaced)})


# Mutations ----------------------------------------------------------------------------------------


def mutations(launch: Recorded) -> Iterator[Mutation]:
    """All changes of a kernel, in the order of its code."""
    for number, function in enumerate(launch.functions):
        for path, node, _ in _below(function.body):
            if isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Call):
                yield from _of_call(number, path, node.value)
            elif isinstance(node, ir.BufferStore) and _is_vector_access(node):
                yield Mutation("width", number, path, _wider)
        for path, node, _ in _addresses(function.body):
            if isinstance(node, ir.Call) and node.op == "tirx.bitwise_xor":
                yield Mutation("swizzle", number, path, lambda n: n.args[0])
            elif isinstance(node, ir.FloorMod) and getattr(node.b, "value", 0) in (2, 4, 8):
                yield Mutation("swizzle", number, path, _shifted)
    for number, step in enumerate(launch.steps):
        if isinstance(step, DescriptorCall):
            at = 4 * int(step.arguments[1].value) + 4
            yield Mutation("descriptor's swizzle", number, ("arguments", at), _other_mode, host=True)


def _of_call(number: int, path: Path_, call: ir.Call) -> Iterator[Mutation]:
    if call.op in _REMOVED:
        nothing = ir.IntImm("int32", 0)
        yield Mutation(_REMOVED[call.op], number, (*path, "value"), lambda _: nothing)
    if call.op == "tirx.ptx_arrive_barrier_expect_tx":
        yield Mutation(
            "expected bytes",
            number,
            (*path, "value"),
            lambda n: replace(n, op="tirx.ptx_arrive_barrier", args=n.args[:1]),
        )
    if call.op == "tl.ptx_cp_async":
        yield Mutation("width", number, (*path, "value", "args", 2), _doubled)


def _is_memory(node: Any) -> bool:
    return node.buffer.scope in ("global", "") or node.buffer.scope.startswith("shared")


def _is_vector_access(node: ir.BufferStore) -> bool:
    accesses = [n for _, n, _ in _below(node) if isinstance(n, ir.BufferLoad)]
    return any(
        _is_memory(each) and any(isinstance(i, ir.Ramp) for i in each.indices)
        for each in (node, *accesses)
    )


def _wider(node: Any) -> Any:
    """A statement on vectors of twice as many elements."""
    if isinstance(node, tuple):
        return tuple(_wider(each) for each in node)
    if not isinstance(node, ir.Stmt | ir.Expr) or isinstance(node, ir.Var):
        return node
    parts = {f.name: _wider(getattr(node, f.name)) for f in dataclasses.fields(node)}
    if isinstance(node, ir.Ramp | ir.Broadcast):
        parts["lanes"] = 2 * node.lanes
        parts |= {k: getattr(node, k) for k in ("base", "stride", "value") if hasattr(node, k)}
    if isinstance(node, ir.Expr) and (count := split(node.dtype)[1]) > 1:
        parts["dtype"] = re.sub(r"x\d+$", f"x{2 * count}", node.dtype)
    return replace(node, **parts)


def _doubled(node: ir.IntImm) -> ir.IntImm:
    return replace(node, value=2 * node.value)


def _shifted(node: ir.FloorMod) -> ir.FloorMod:
    return replace(node, a=ir.Add(node.a.dtype, node.a, ir.IntImm(node.a.dtype, 1)))


def _other_mode(node: ir.IntImm) -> ir.IntImm:
    return replace(node, value=(int(node.value) + 1) % 4)


def _addresses(body: Any) -> Iterator[tuple[Path_, Any, Any]]:
    """What is in the indices of accesses to shared memory."""
    for path, node, _ in _below(body):
        if isinstance(node, ir.BufferLoad | ir.BufferStore) and node.buffer.scope == "shared.dyn":
            yield from _below(node.indices, (*path, "indices"))
        elif isinstance(node, ir.Call) and node.op == "tirx.tvm_access_ptr":
            yield from _below(node.args[2], (*path, "args", 2))


def mutated(launch: Recorded, mutation: Mutation) -> Recorded:
    """A launch of the changed kernel."""
    k = mutation.function
    if mutation.host:
        steps = list(launch.steps)
        steps[k] = _changed(steps[k], mutation.path, mutation.replaced)
        return replace(launch, steps=tuple(steps))
    functions = list(launch.functions)
    body = _changed(functions[k].body, mutation.path, mutation.replaced)
    functions[k] = replace(functions[k], body=body)
    return replace(launch, functions=functions)


# Runs ---------------------------------------------------------------------------------------------


def program(launch: Recorded, *, suspends: bool = False) -> LoweredKernel:
    """The programs of a launch."""
    programs = {}
    for function in launch.functions:
        emitter = Emitter(function, HANDLERS)
        emitter.suspends |= suspends
        programs[function.name] = emitter.program()
    return LoweredKernel(launch.kernel, launch.steps, programs)


def results(launch: Recorded) -> tuple[list[Any], list[str]]:
    """The arguments after a launch, and what sanitizers reported."""
    kernel, values, reports = program(launch), copied(launch.values), ReportSet()
    functions = {name: function_of(each) for name, each in kernel.programs.items()}
    run(kernel, values, functions, Watching(DEFAULT_SANITIZERS, reports, launch.kernel.name))
    return values, [f"{each.sanitizer}: {each.message}" for each in reports.reports()]


def scheduled(launch: Recorded, schedule: Schedule) -> list[Any]:
    """The arguments after a launch one warp after another."""
    values = copied(launch.values)
    run_scheduled(program(launch, suspends=True), values, schedule)
    return values


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether tensors have equal bits."""
    pairs = [p for p in zip(a, b, strict=True) if isinstance(p[0], torch.Tensor)]
    return all(_bits(x).equal(_bits(y)) for x, y in pairs)


def _bits(tensor: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Judge:
    """Judges mutants of a launch by what the launch itself gives."""

    def __init__(self, launch: Recorded) -> None:
        """Run the launch; `alarms` has what is reported of it."""
        self._launch = launch
        self._expected, self.alarms = results(launch)
        self._scheduled: dict[Schedule, list[Any]] = {}

    def outcome(self, mutation: Mutation) -> tuple[str, str]:
        """What becomes of a mutant, and why."""
        changed = mutated(self._launch, mutation)
        try:
            values, reports = results(changed)
        except Unsupported as error:
            return "refused", str(error).splitlines()[0]
        except InterpreterError as error:
            return "reported", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:  # noqa: BLE001 - a fault of ours, to be mended
            return "missed", f"internal {type(error).__name__}: {error}"
        new = [each for each in reports if each not in self.alarms]
        if new:
            return "reported", new[0]
        if not same(values, self._expected):
            return "wrong values", ""
        for schedule in SCHEDULES:
            if schedule not in self._scheduled:
                self._scheduled[schedule] = scheduled(self._launch, schedule)
            try:
                if not same(scheduled(changed, schedule), self._scheduled[schedule]):
                    return "missed", f"values differ under {schedule}"
            except InterpreterError as error:
                return "missed", f"{error} under {schedule}"
        return "without effect", ""


def _judged(launch: Recorded, spec: str, each: int) -> Iterator[Row]:
    began = time.process_time()
    judge = Judge(launch)
    name = launch.kernel.name
    print(f"{spec} {launch.arch} {name}: {time.process_time() - began:.1f} s", flush=True)
    for alarm in judge.alarms:
        yield Row(spec, launch.arch, name, "none", "", "false alarm", alarm, 0.0)
    kinds: dict[str, list[Mutation]] = {}
    for mutation in mutations(launch):
        kinds.setdefault(mutation.kind, []).append(mutation)
    for kind, found in kinds.items():
        step = 1 if kind in _REMOVED.values() else -(-len(found) // each)
        for mutation in found[::step]:
            began = time.process_time()
            outcome, detail = judge.outcome(mutation)
            place = f"{mutation.function}:{'.'.join(map(str, mutation.path))}"
            seconds = round(time.process_time() - began, 2)
            yield Row(spec, launch.arch, name, kind, place, outcome, detail, seconds)


def table(rows: Sequence[Row]) -> str:
    """Mutants by kind and outcome, as a table of Markdown."""
    counts = Counter((row.kind, row.outcome) for row in rows)
    lines = [f"| mutation | {' | '.join(_OUTCOMES)} |", "| --- |" + " ---: |" * len(_OUTCOMES)]
    for kind in dict.fromkeys(row.kind for row in rows if row.kind != "none"):
        lines.append(f"| {kind} | {' | '.join(str(counts[kind, o]) for o in _OUTCOMES)} |")
    total = Counter(row.outcome for row in rows)
    lines.append(f"| all | {' | '.join(str(total[o]) for o in _OUTCOMES)} |")
    return "\n".join(lines)


def main() -> int:
    """Print the mutants and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", help="names of specs (all)")
    parser.add_argument("--arch", default="sm_80,sm_90a")
    parser.add_argument("--each", type=int, default=6, help="changed widths, terms and descriptors of a kernel, of each kind (6)")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="a folder for launches")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    asked = parser.parse_args()
    names = asked.specs or sorted(path.stem for path in _SPECS.glob("*.yaml"))
    rows: list[Row] = []
    for name in names:
        for arch in asked.arch.split(","):
            for launch in recorded(_SPECS / f"{name}.yaml", arch, asked.cache):
                for row in _judged(launch, name, asked.each):
                    rows.append(row)
                    print(f"  {row.kind:22} {row.outcome:15} {row.seconds:6.2f} {row.detail[:150]}")
                    sys.stdout.flush()
                if asked.json:
                    asked.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    print(table(rows))
    return 1 if any(row.outcome in ("missed", "false alarm") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
