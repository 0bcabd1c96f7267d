"""From a traced PrimFunc to Python source: one function that runs the whole grid."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.session import current

from .budget import SharedMemory, shared_memory, tensor_memory
from .builtins import without_builtins
from .conditions import with_boolean_conditions
from .context import Buf
from .covered import Counted, CoverageMixin
from .cutting import CuttingMixin
from .firsts import written_first
from .flags import FlagMixin, calls_models, is_flag_call
from .recorded import Loop, Record, RecordedMixin, Spot
from .returns import without_returns
from .rows import Cut, row_cuts
from .sanitized import SanitizedMixin, Site, Watch, kernel_usage
from .source import Location, location_of, unwrapped
from .threadfragments import with_thread_fragments
from .threadloops import without_thread_loops
from .threadturns import Inferred, annotates_fragments
from .values import FLOATS, LOW_PRECISION, Val, is_float, is_int
from .vectors import scalarized

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Counted",
    "Location",
    "Loop",
    "Parameter",
    "Program",
    "Record",
    "SharedMemory",
    "Site",
    "Spot",
    "Watch",
    "generate",
    "kernel_usage",
    "widened",
]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the kernel.

    Attributes:
        name: the user's name.
        dtype: the IR's dtype.
        shape: for a tensor its extents, each an int or the code of an expression over the
            symbolic dims and the scalar parameters; None for a scalar.
        strides: as `shape`.
        used: whether the kernel accesses it.
        code: its name in those expressions, for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] = ()
    used: bool = True
    code: str = ""


@dataclass(frozen=True)
class Program:
    """The generated source of one kernel, and how to call it.

    Attributes:
        source: a module with one function, `kernel`.
        locations: for each line of the source the user's line.
        parameters: the PrimFunc's parameters in order.
        symbols: names of symbolic dims, passed after the parameters.
        layouts: global buffers with an annotated layout.
        together: of those, how many elements of a row a vector atomic takes for neighbours.
        watch: what the monitor of a sanitized program needs to know; None for others.
        shared: how much shared memory the kernel needs; known of sanitized programs.
        counted: what a covered program counts; None for others.
        tensor: how many columns of tensor memory.
        record: what the recorder of a recorded program needs to know; None for others.
        waits: whether its blocks wait for flags, so that the function returns a `BlockLaunch`.
    """

    name: str
    source: str
    locations: tuple[Location | None, ...]
    parameters: tuple[Parameter, ...]
    symbols: tuple[str, ...]
    layouts: dict[str, Any]
    watch: Watch | None = None
    shared: SharedMemory | None = None
    counted: Counted | None = None
    tensor: SharedMemory | None = None
    record: Record | None = None
    together: dict[str, int] = field(default_factory=dict)
    waits: bool = False


class _Generator(CuttingMixin):
    """One generation; see `generate`."""

    def __init__(self, func: Any, *, guard: bool, cuts: Sequence[Cut] = ()) -> None:
        super().__init__(guard, location_of)
        self.start_grids()
        self.start_steady(func)
        self.start_cutting(cuts)
        self.func = func
        self.kernel = str(func.attrs["global_symbol"])
        self.kernel_place = f", in kernel {self.kernel}"
        self.addressed = _addressed(func)
        self.viewed = _viewed(func)
        self.written_first = written_first(func)
        self.symbols: dict[str, Val] = {}
        self.parameters: list[Parameter] = []
        self._inferred: Inferred | None = None

    def run(self) -> Program:
        """Generate the program."""
        from tlmatrix.interpreter.runtime import environment

        self.w.reserve(*environment(), "kernel", "range", "min", "max", "abs", "int", "bool")
        self.w.reserve(
            "if", "in", "is", "or", "and", "not", "for", "def", "else", "lambda", "as", "kept_at"
        )
        self._bind_parameters()
        self.stmt(self.func.body)
        arguments = [p.name for p in self.parameters] + list(self.symbols)
        lines = [f"def kernel({', '.join(self._codes + list(self.symbols))}):"]
        locations: list[Location | None] = [None]
        body = [*self.prologue.lines, *self.w.lines] or ["pass"]
        del arguments
        lines += ["    " + unwrapped(text) for text in body]
        locations += [*self.prologue.locations, *self.w.locations]
        return Program(
            name=self.kernel,
            source="\n".join(lines) + "\n",
            locations=tuple(locations),
            parameters=tuple(self.parameters),
            symbols=tuple(self.symbols),
            layouts=self.layouts,
            together=self.together,
        )

    def layouts_inferred(self) -> Inferred | None:
        """What TileLang infers; None where nobody annotated layouts of fragments."""
        if self._inferred is None and annotates_fragments(self.func):
            session = current()
            self._inferred = Inferred(self.func, session.arch if session else "sm_90a")
        return self._inferred

    def _bind_parameters(self) -> None:
        from tilelang import tvm

        self._codes: list[str] = []
        used = _used_buffers(self.func)
        for param in self.func.params:
            if param not in self.func.buffer_map:
                code = self.w.fresh(str(param.name))
                dtype = str(param.dtype)
                if not (is_float(dtype) or is_int(dtype) or dtype == "bool"):
                    raise self.refuse(f"a parameter of type {dtype} ({param.name})")
                self.vars[param] = Val(code, dtype)
                self._codes.append(code)
                self.parameters.append(Parameter(str(param.name), dtype, None, code=code))
                continue
            self._codes.append("")
            self.parameters.append(Parameter("", "", None))

        def symbol(node: Any) -> Any:
            if isinstance(node, tvm.tirx.Var) and node not in self.vars:
                code = self.w.fresh(str(node.name))
                self.symbols[code] = Val(code, str(node.dtype), lo=0, hi=(1 << 31) - 1)
                self.vars[node] = self.symbols[code]
            return None

        for param in self.func.params:
            if param in self.func.buffer_map:
                buffer = self.func.buffer_map[param]
                for extent in [*buffer.shape, *buffer.strides]:
                    tvm.tirx.stmt_functor.post_order_visit(extent, symbol)
        for k, param in enumerate(self.func.params):
            if param not in self.func.buffer_map:
                continue
            buffer = self.func.buffer_map[param]
            # Whatever is known of a parameter is known by its name.
            name = _unlike(str(buffer.name), [p.name for p in self.parameters])
            dtype = str(buffer.dtype)
            if not (is_float(dtype) or is_int(dtype) or dtype == "bool"):
                raise self.refuse(f"a parameter of dtype {dtype} ({name})")
            code = self.w.fresh(name)
            self.wide = True
            shape = tuple(self.expr(n) for n in buffer.shape)
            strides = tuple(self.expr(n) for n in buffer.strides or _compact(buffer.shape))
            self.wide = False
            buf = Buf(name, code, dtype, shape, "global", codec=LOW_PRECISION.get(dtype))
            if is_float(dtype) and dtype != "float64":
                buf.safe = "F32(0)"
            self.buffers[buffer] = buf
            self._codes[k] = code
            self.parameters[k] = Parameter(
                name,
                dtype,
                tuple(n.lit if n.lit is not None else n.code for n in shape),
                tuple(n.lit if n.lit is not None else n.code for n in strides),
                used=buffer in used,
            )


def _compact(shape: Sequence[Any]) -> list[Any]:
    """The strides of a buffer that states none."""
    from tilelang import tvm

    step = tvm.tirx.const(1, "int32")
    strides = []
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return strides[::-1]


def _unlike(name: str, known: Sequence[str]) -> str:
    """A name that is not known yet: `x`, of a second one `x (2)`."""
    names = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
    return next(each for each in names if each not in known)


def _used_buffers(func: Any) -> set[Any]:
    from tilelang import tvm

    used: set[Any] = set()

    def visit(node: Any) -> None:
        if isinstance(node, (tvm.tirx.BufferLoad, tvm.tirx.BufferStore)):
            used.add(node.buffer)

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return used


def _addressed(func: Any) -> set[Any]:
    """Buffers that a tile operation or a pointer refers to, which must be arrays."""
    from tilelang import tvm

    found: set[Any] = set()

    def visit(node: Any) -> None:
        if (
            isinstance(node, tvm.tirx.Call)
            and str(getattr(node.op, "name", ""))
            in ("tl.region", "tl.tileop.region", "tl.access_ptr")
            and isinstance(node.args[0], tvm.tirx.BufferLoad)
        ):
            found.add(node.args[0].buffer)

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def _viewed(func: Any) -> set[Any]:
    """Memory that is accessed under several dtypes, one of them a low-precision one."""
    from tilelang import tvm

    found: dict[Any, set[str]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.SBlock):
            for buffer in node.alloc_buffers:
                found.setdefault(buffer.data, set()).add(str(buffer.dtype))
        elif isinstance(node, (tvm.tirx.BufferLoad, tvm.tirx.BufferStore)):
            found.setdefault(node.buffer.data, set()).add(str(node.buffer.dtype))

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return {
        data
        for data, dtypes in found.items()
        if len(dtypes) > 1 and any(dtype in LOW_PRECISION for dtype in dtypes)
    }


class _FlagGenerator(FlagMixin, _Generator):
    """A generation whose blocks wait for flags."""


class _SanitizedGenerator(SanitizedMixin, _Generator):
    """Generates a sanitized variant; see `sanitized`."""

    def __init__(
        self,
        func: Any,
        *,
        guard: bool,
        sanitizers: frozenset[str],
        traced: bool,
        cuts: Sequence[Cut] = (),
    ) -> None:
        super().__init__(func, guard=guard, cuts=cuts)
        self.start_watching(func, sanitizers, traced=traced)
        self.shortens = not traced

    def run(self) -> Program:
        """Generate the program; its function takes a monitor as last argument."""
        program = super().run()
        return replace(
            program,
            source=_with_parameter(program.source, "watch"),
            watch=self.watch_plan(),
            shared=shared_memory(self.func),
            tensor=tensor_memory(self.func),
        )

    def _bind_parameters(self) -> None:
        super()._bind_parameters()
        self.watch_parameters()


class _SanitizedFlagGenerator(FlagMixin, _SanitizedGenerator):
    """A sanitized generation whose blocks wait for flags."""

    watching = ", watch"


def _with_parameter(source: str, name: str) -> str:
    """The source with one more parameter of its function, the last."""
    head, rest = source.split("\n", 1)
    head = head.removesuffix("):")
    return f"{head}{'' if head.endswith('(') else ', '}{name}):\n{rest}"


def _covered(base: type[_Generator]) -> type[_Generator]:
    """The generator of the covered variant of what `base` generates."""

    class _CoveredGenerator(CoverageMixin, base):  # type: ignore[misc, valid-type]
        """Its function takes the counts as last argument."""

        def __init__(self, func: Any, **options: Any) -> None:
            super().__init__(func, **options)
            self.start_counting(func)

        def run(self) -> Program:
            """Generate the program."""
            program: Program = super().run()
            head, rest = _with_parameter(program.source, "cover").split("\n", 1)
            return replace(
                program,
                source=f"{head}\n    hit, trips = cover\n{rest}",
                locations=(program.locations[0], None, *program.locations[1:]),
                counted=self.counted(),
            )

    return _CoveredGenerator


class _RecordedGenerator(RecordedMixin, _Generator):
    """Generates a recorded variant; see `recorded`."""

    def __init__(self, func: Any, *, guard: bool) -> None:
        super().__init__(func, guard=guard)
        self.shortens = False
        self.start_recording(func)

    def run(self) -> Program:
        """Generate the program; its function takes a recorder as last argument."""
        program = super().run()
        return replace(program, source=_with_parameter(program.source, "rec"), record=self.record())

    def _bind_parameters(self) -> None:
        super()._bind_parameters()
        self.note_whole_kernel(self.func)

    def _stmt_Evaluate(self, node: Any) -> None:
        # The launch is over: its waits have ended, and nobody waits for what it signals.
        if not is_flag_call(node.value):
            super()._stmt_Evaluate(node)

    def _call_tirx_call_pure_extern(self, node: Any, dtype: str) -> Val:
        del dtype
        if not is_flag_call(node):
            raise self.refuse(f"the operation tirx.call_pure_extern of {node.args[0]}")
        return self.expr(node.args[3])  # `tlm_given_*`: the number that it gives


def widened(func: Any) -> Any:
    """The PrimFunc with float64 in the place of every float dtype: the same program, exact.

    Raises:
        Unsupported: if it looks at the bits of a float.
    """
    import json
    import re

    from tilelang import tvm

    func = scalarized(func)  # a vector's dtype has another name
    seen: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.Call) and str(getattr(node.op, "name", "")).endswith(
            "reinterpret"
        ):
            seen.append(str(node.dtype))

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    if any(is_float(dtype) for dtype in seen):
        raise Unsupported("float64 has no place for a float that is made of bits (T.reinterpret)")
    names = "|".join(sorted(FLOATS - {"float64"}, key=len, reverse=True))
    text = re.sub(rf'"(?:{names})"', json.dumps("float64"), tvm.ir.save_json(func))
    return tvm.ir.load_json(text)


def generate(
    func: Any,
    *,
    guard: bool = True,
    sanitizers: frozenset[str] | None = None,
    traced: bool = False,
    covered: bool = False,
    recorded: bool = False,
) -> Program:
    """Generate the program of a PrimFunc.

    Args:
        func: a traced, not yet lowered `tvm.tirx.PrimFunc`.
        guard: whether global accesses are guarded (`tl.disable_safe_memory_legalize` off).
        sanitizers: for a sanitized variant the sanitizers that are on.
        traced: whether that variant traces where values stop being finite.
        covered: whether the program counts what of it is run.
        recorded: whether to generate the recorded variant, which has no sanitizers.

    Raises:
        Unsupported: naming the operation and the user's line, if something is not modelled.
    """
    if not hasattr(func, "buffer_map"):
        raise Unsupported(f"the interpreter runs PrimFuncs, got {type(func).__name__}")
    from tlmatrix.interpreter.roles.generate import RoleMixin
    from tlmatrix.interpreter.roles.threads import needs_roles

    func = without_returns(without_thread_loops(func))
    func = scalarized(with_boolean_conditions(without_builtins(func)))
    func = with_thread_fragments(func)

    def variant(base: type[_Generator], **options: Any) -> Any:
        return (_covered(base) if covered else base)(func, guard=guard, **options)

    program: Program
    flags = calls_models(func)
    if recorded:
        if needs_roles(func):
            raise Unsupported(
                f"kernel {func.attrs['global_symbol']} cannot be traced: its threads play roles"
            )
        return _RecordedGenerator(func, guard=guard).run()
    if flags and not needs_roles(func):
        waiting = (
            variant(_FlagGenerator)
            if sanitizers is None
            else variant(_SanitizedFlagGenerator, sanitizers=sanitizers, traced=traced)
        )
        waiting.start_flags()
        program = waiting.run()
        return replace(program, waits=True)
    if not needs_roles(func):
        # What counts, traces or watches guards is told of every row.
        whole = covered or traced or not guard or "guarded" in (sanitizers or ())
        # Threads take turns over whole tiles.
        whole = whole or annotates_fragments(func)
        cuts = [] if whole else row_cuts(func, kernel_usage(func))
        if sanitizers is None:
            program = variant(_Generator, cuts=cuts).run()
        else:
            program = variant(
                _SanitizedGenerator, sanitizers=sanitizers, traced=traced, cuts=cuts
            ).run()
        return program

    from tlmatrix.interpreter.roles.sanitized import SanitizedRoleMixin

    class _RoleGenerator(RoleMixin, _Generator):
        """A generation with roles."""

    class _SanitizedRoleGenerator(SanitizedRoleMixin, _SanitizedGenerator):
        """A sanitized generation with roles."""

    generator = (
        variant(_RoleGenerator)
        if sanitizers is None
        else variant(_SanitizedRoleGenerator, sanitizers=sanitizers, traced=traced)
    )
    generator.start_roles()
    program = generator.run()
    return program
