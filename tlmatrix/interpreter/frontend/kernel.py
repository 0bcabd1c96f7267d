"""A kernel that runs interpreted: TileLang's call semantics over a generated program."""

from __future__ import annotations

import linecache
import numbers
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _python_dispatch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter import runtime
from tlmatrix.interpreter.errors import (
    EMPTY_TENSOR,
    ArgumentError,
    InterpreterError,
    LaunchError,
    Unsupported,
)
from tlmatrix.interpreter.frontend.descriptors import described, may_be_described
from tlmatrix.interpreter.frontend.layouts import positions
from tlmatrix.interpreter.frontend.sanitized import launch
from tlmatrix.interpreter.frontend.tracing import written_at
from tlmatrix.interpreter.generate import Options, generate, usage_of
from tlmatrix.interpreter.ops import FUNCTIONS
from tlmatrix.interpreter.ops.gemm import FLOAT8_BITS, TF32
from tlmatrix.interpreter.ranks.launches import enqueue_kernel
from tlmatrix.interpreter.runtime.tracer import Born
from tlmatrix.interpreter.session import current
from tlmatrix.interpreter.sync import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tlmatrix.interpreter.ir.nodes import Location
    from tlmatrix.interpreter.program import Parameter, Program, Record
    from tlmatrix.interpreter.session import Session
    from tlmatrix.interpreter.sync.dispatch import BlockLaunch

__all__ = ["InterpretedKernel", "environment", "load_program", "unseen"]

_CODEC_OF = {codec.dtype: codec for codec in runtime.CODECS.values()}


@dataclass(frozen=True)
class Loaded:
    """A compiled program."""

    program: Program
    function: Callable[..., BlockLaunch | None]
    filename: str
    guard: bool
    # Programs of the same PrimFunc, this one too: by sanitizers, and whether traced and covered.
    variants: dict[tuple[frozenset[str], bool, bool], Loaded] = field(default_factory=dict)
    # Recorded programs of the same PrimFunc, by whether all floats are float64.
    recorded: dict[bool, Loaded] = field(default_factory=dict)


def load_program(program: Program, number: str, *, guard: bool) -> Loaded:
    """Compile a program's source; tracebacks show it."""
    filename = f"<tlmatrix interpreter {program.name} {number}>"
    linecache.cache[filename] = (
        len(program.source),
        None,
        program.source.splitlines(keepends=True),
        filename,
    )
    namespace = {**runtime.environment(), **FUNCTIONS}
    namespace["LOCATIONS"] = program.locations
    exec(compile(program.source, filename, "exec"), namespace)  # noqa: S102  # our own source
    return Loaded(program, namespace["kernel"], filename, guard)


_NONE: frozenset[str] = frozenset()
_HOPPER_FLOAT8_BITS = 14
"""See `runtime.tiles.gemm_float8`."""


class InterpretedKernel:
    """What a `@tilelang.jit` factory returns under `interpret()`.

    Call it as a compiled kernel: inputs in the order of the PrimFunc's parameters without those
    of `out_idx`, which are allocated and returned.

    Attributes:
        prim_func: the traced PrimFunc.
        out_idx: indices of the parameters that are outputs.
        source: the generated Python source.
    """

    latency: float | None = None
    config: dict[str, Any] | None = None
    ref_latency: float | None = None

    def __init__(
        self,
        prim_func: Any,
        loaded: Loaded,
        out_idx: Sequence[int] | int | None,
        *,
        arch: str = "",
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        self.prim_func = prim_func
        self._arch = arch
        self._configs = dict(configs or {})
        self._loaded = loaded
        self._program = loaded.program
        self._parameters = loaded.program.parameters
        self.out_idx = _normalized(out_idx, len(self._parameters))
        self._inputs = [k for k in range(len(self._parameters)) if k not in self.out_idx]
        scalars = tuple(p.code for p in self._parameters if p.shape is None)
        self._names = (*self._program.symbols, *scalars)
        self._expressions = {
            code: eval(  # noqa: S307  # our own source
                f"lambda {', '.join(self._names)}: {code}", runtime.environment()
            )
            for p in self._parameters
            for code in (*(p.shape or ()), *p.strides)
            if isinstance(code, str) and code not in self._program.symbols
        }
        self._layouts: dict[tuple[Any, ...], Any] = {}

    @property
    def source(self) -> str:
        """The generated Python source."""
        return self._program.source

    @property
    def kernel_source(self) -> str:
        """The generated Python source, under the name a compiled kernel has for it."""
        return self._program.source

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The generated Python source, in place of a compiled kernel's CUDA."""
        del kernel_only
        return self._program.source

    @property
    def params(self) -> list[Any]:
        """TileLang's description of the parameters."""
        from tilelang.engine.param import KernelParam

        buffers = self.prim_func.buffer_map
        return [
            KernelParam.from_buffer(buffers[p]) if p in buffers else KernelParam.from_var(p)
            for p in self.prim_func.params
        ]

    def get_profiler(self, tensor_supply_type: Any = None) -> Any:
        """TileLang's profiler of this kernel: it compares outputs, and has no time to give.

        `assert_allclose` and the like run the kernel interpreted. `do_bench` raises
        `Unsupported`, and answers NaN in a program run by `tlmatrix exec`.
        """
        from tilelang.profiler import Profiler
        from tilelang.utils.tensor import TensorSupplyType

        supply = tensor_supply_type or TensorSupplyType.Auto
        return Profiler(self.params, self.out_idx, supply).with_default_adapter(self)

    def run_once(self, func: Any = None) -> Any:
        """Run on inputs that TileLang's profiler makes."""
        return self.get_profiler().run_once(func)

    def __repr__(self) -> str:
        return f"<InterpretedKernel {self._program.name}>"

    # -- calling

    def __call__(self, *args: Any) -> Any:
        """Run the kernel on CPU tensors.

        Raises:
            ArgumentError: for an argument that the signature does not allow (a ValueError).
            TypeError: for an argument of the wrong kind.
            LaunchError: for a launch that TileLang's host code refuses, of nothing.
            InterpreterError: for an access outside unguarded memory and the like.
        """
        if context.rank() is not None:
            return self._called(args)
        # No question about a tensor is a program's: what stands in for a GPU need not answer.
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - has no public name
            return self._called(args)

    def _called(self, args: tuple[Any, ...]) -> Any:
        if len(args) != len(self._inputs):
            raise ArgumentError(
                f"kernel {self._program.name} expected {len(self._inputs)} inputs "
                f"({', '.join(self._parameters[k].name for k in self._inputs)}), "
                f"but {len(args)} are provided"
            )
        symbols: dict[str, int] = {}
        values: list[Any] = [None] * len(self._parameters)
        for k, value in zip(self._inputs, args, strict=True):
            values[k] = value
        self._bind_symbols(values, symbols)
        outputs = []
        for k in self.out_idx:
            values[k] = self._allocate(self._parameters[k], symbols)
            outputs.append(values[k])
        self._check_described(values)
        session = current()
        rank = context.rank()
        if rank is not None:
            lend = rank.world.memory.borrowed
            values = [lend(v) if isinstance(v, torch.Tensor) else v for v in values]
            enqueue_kernel(self, lambda: self._running(session, values, symbols, rank.number))
        else:
            for blocks in self._running(session, values, symbols):
                blocks.run_alone()
        if len(outputs) == 1:
            return outputs[0]
        return outputs or None

    def _check_described(self, values: list[Any]) -> None:
        """Host code makes TMA descriptors before anything runs, and there is none of nothing."""
        for k, value in enumerate(values):
            if isinstance(value, torch.Tensor) and 0 in value.shape and k in self._described:
                name, shape = self._parameters[k].name, tuple(value.shape)
                error = LaunchError.of(self.name, EMPTY_TENSOR, f"{name} of shape {shape}")
                raise self._located(error, self._loaded)

    @cached_property
    def _described(self) -> frozenset[int]:
        """Positions of the parameters that have TMA descriptors."""
        if not may_be_described(self.prim_func, self._arch):
            return frozenset()
        with unseen():
            return described(self.prim_func, self._arch, self._configs)

    def _bind_symbols(self, values: list[Any], symbols: dict[str, int]) -> None:
        pending: list[tuple[Parameter, Any, str, int, str | int, int]] = []
        absent: list[Parameter] = []
        known = self._program.symbols
        for k in self._inputs:
            p, value = self._parameters[k], values[k]
            if p.shape is None:
                self._check_scalar(p, value)
                if p.dtype.startswith(("int", "uint", "bool")):
                    symbols[p.code] = int(value)
                if p.name in known:
                    symbols[p.name] = int(value)
                continue
            if value is None and not p.used:
                absent.append(p)
                continue
            self._check_tensor(p, value)
            for axis, (want, got) in enumerate(zip(p.shape, value.shape, strict=True)):
                if want == got or symbols.get(want) == got:  # type: ignore[arg-type]
                    continue
                if isinstance(want, int):
                    raise self._mismatch(p, "shape", axis, str(want), got, value)
                if want in known and want not in symbols:
                    symbols[want] = got
                else:
                    pending.append((p, value, "shape", axis, want, got))
            if k in self._packed and value.is_contiguous():
                continue
            if 0 in value.shape:
                for want, got in zip(p.strides, value.stride(), strict=True):
                    if isinstance(want, str) and want in known:
                        symbols.setdefault(want, got)
                continue
            for axis, (want, got) in enumerate(zip(p.strides, value.stride(), strict=True)):
                if value.shape[axis] == 1:
                    if isinstance(want, str) and want in known:
                        symbols.setdefault(want, got)
                elif isinstance(want, int):
                    if want != got:
                        raise self._mismatch(p, "strides", axis, str(want), got, value)
                elif want in known and want not in symbols:
                    symbols[want] = got
                else:
                    pending.append((p, value, "strides", axis, want, got))
        for p, value, what, axis, want, got in pending:
            expected_value = self._evaluate(str(want), symbols, solve=got)
            if expected_value != got:
                shown = f"{want} = {expected_value}" if str(want) != str(expected_value) else want
                raise self._mismatch(p, what, axis, str(shown), got, value)
        # As TileLang binds what only tensors have that are not there.
        for p in absent:
            for want in (*(p.shape or ()), *p.strides):
                if isinstance(want, str) and want in known:
                    symbols.setdefault(want, 0)

    @cached_property
    def _packed(self) -> frozenset[int]:
        """The parameters whose strides are those of a contiguous tensor of their shape.

        Tried with two choices of the symbolic dimensions.
        """
        return frozenset(
            k
            for k in self._inputs
            if self._parameters[k].shape is not None
            and all(self._is_packed(self._parameters[k], first) for first in (1009, 2003))
        )

    def _is_packed(self, p: Parameter, first: int) -> bool:
        trial = {name: first + 7 * n for n, name in enumerate(self._names)}

        def number(code: int | str) -> int:
            return code if isinstance(code, int) else self._evaluate(code, trial)

        assert p.shape is not None
        step = 1
        for extent, stride in zip(reversed(p.shape), reversed(p.strides), strict=True):
            if number(stride) != step:
                return False
            step *= number(extent)
        return True

    def _evaluate(self, code: str, symbols: dict[str, int], solve: int | None = None) -> int:
        """An expression over symbolic dims; binds the one it may lack so that it is `solve`."""
        if code in symbols:
            return symbols[code]
        function = self._expressions.get(code)
        if function is None:
            raise ArgumentError(
                f"kernel {self._program.name}: no input binds the symbolic dimension {code}"
            )
        names = self._names
        missing = [n for n in names if n not in symbols and _mentions(code, n)]
        if missing and solve is not None and len(missing) == 1:
            trial = {n: symbols.get(n, 0) for n in names}
            zero = function(**trial)
            trial[missing[0]] = 1
            slope = function(**trial) - zero
            if slope and (solve - zero) % slope == 0 and (solve - zero) // slope >= 0:
                symbols[missing[0]] = (solve - zero) // slope
        elif missing:
            raise ArgumentError(
                f"kernel {self._program.name}: the symbolic dimensions {', '.join(missing)} "
                f"in {code} are not bound by any input"
            )
        return int(function(**{n: symbols.get(n, 0) for n in names}))

    def _mismatch(
        self, p: Parameter, what: str, axis: int, expected: str, got: int, value: torch.Tensor
    ) -> ArgumentError:
        full = tuple(value.shape) if what == "shape" else tuple(value.stride())
        hint = "; pass a contiguous tensor" if what == "strides" else ""
        return ArgumentError(
            f"kernel {self._program.name}: argument {p.name} must have "
            f"{what}[{axis}] = {expected}, got {got} ({what} {full}){hint}"
        )

    def _check_scalar(self, p: Parameter, value: Any) -> None:
        wanted = numbers.Real if p.dtype.startswith("float") else numbers.Integral
        if isinstance(value, torch.Tensor) or not isinstance(value, wanted):
            raise TypeError(
                f"kernel {self._program.name}: argument {p.name} must be "
                f"a number of type {p.dtype}, got {type(value).__name__}"
            )
        if p.dtype.startswith(("int", "uint")):
            low, high = _limits(p.dtype)
            number: Any = value
            if not low <= number <= high:
                raise ArgumentError(
                    f"kernel {self._program.name}: argument {p.name} must fit {p.dtype} "
                    f"({low} to {high}), got {value}"
                )

    def _check_tensor(self, p: Parameter, value: Any) -> None:
        assert p.shape is not None
        where = f"kernel {self._program.name}: argument {p.name}"
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{where} must be a tensor, got {type(value).__name__}")
        if value.dtype != TILE_DTYPES[p.dtype].torch:
            raise ArgumentError(f"{where} must have dtype {p.dtype}, got {value.dtype}")
        if not value.is_cpu:
            raise ArgumentError(
                f"{where} is on {value.device}, but interpreted kernels take tensors of the CPU; "
                "move it there, or call the kernel outside interpret()"
            )
        if value.dim() != len(p.shape):
            raise ArgumentError(
                f"{where} must have {len(p.shape)} dimensions "
                f"({', '.join(str(n) for n in p.shape)}), got shape {tuple(value.shape)}"
            )

    def _allocate(self, p: Parameter, symbols: dict[str, int]) -> torch.Tensor:
        if p.shape is None:
            raise ArgumentError(
                f"kernel {self._program.name}: out_idx names {p.name}, which is a scalar"
            )
        shape = [n if isinstance(n, int) else self._evaluate(n, symbols) for n in p.shape]
        return torch.empty(shape, dtype=TILE_DTYPES[p.dtype].torch, device="cpu")

    # -- running

    def variant(self, session: Session, *, traced: bool) -> Loaded:
        """The sanitized program for a session, generated at its first use."""
        covered = session.recorder is not None and not traced
        return self._variant(session.sanitizers, traced, covered)

    def _variant(self, sanitizers: frozenset[str], traced: bool, covered: bool) -> Loaded:
        base = self._loaded
        base.variants.setdefault((_NONE, False, base.program.counted is not None), base)
        key = (sanitizers, traced, covered)
        found = base.variants.get(key)
        if found is None:
            program = generate(
                self.prim_func,
                Options(
                    guard=base.guard,
                    sanitizers=sanitizers or None,
                    traced=traced,
                    covered=covered,
                    arch=self._arch or "sm_90a",
                ),
            )
            words = {"sanitized": bool(sanitizers), "traced": traced, "covered": covered}
            kinds = " ".join(word for word, holds in words.items() if holds) or "plain"
            number = base.filename.rstrip(">").rsplit(maxsplit=1)[-1]
            found = load_program(program, f"{kinds} {number}", guard=base.guard)
            base.variants[key] = found
        return found

    def _running(
        self,
        session: Session | None,
        values: list[Any],
        symbols: dict[str, int],
        rank: int | None = None,
    ) -> Iterator[BlockLaunch]:
        """Run the launch; of a kernel that waits for flags yields the blocks, to be run."""
        if session is None or (session.log is None and not session.sanitizers):
            yield from self._run(session, values, symbols)
            return
        if session.log is None:
            yield from self._run_sanitized(session, values, symbols)
            return
        # What was called is kept, so that it can be explained.
        named = {p.name: v for p, v in zip(self._parameters, values, strict=True)}
        with unseen():
            launch = session.log.before(self, named, symbols, rank)
        if session.sanitizers:
            yield from self._run_sanitized(session, values, symbols)
        else:
            yield from self._run(session, values, symbols)
        with unseen():
            launch.ended()
            session.trace_launch(launch)

    def _run_sanitized(
        self, session: Session, values: list[Any], symbols: dict[str, int]
    ) -> Iterator[BlockLaunch]:
        def execute(values: list[Any], watch: Any, traced: bool) -> Iterator[BlockLaunch]:
            loaded = self.variant(session, traced=traced)
            return self._run(session, values, symbols, loaded, watch)

        # No mode of a caller sees what is done; while blocks are run elsewhere none is changed.
        steps = launch(self, session, values, execute)
        while True:
            with unseen():
                found = next(steps, None)
            if found is None:
                return
            yield found

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._program.name

    @property
    def waits(self) -> bool:
        """Whether its blocks wait for flags, or set them."""
        return self._program.waits

    @cached_property
    def usage(self) -> dict[str, frozenset[str]]:
        """What the kernel does with each parameter: "read", "write", "atomic"."""
        outputs = {str(self._parameters[k].name): frozenset({"write"}) for k in self.out_idx}
        found = zip(self._parameters, usage_of(self.prim_func), strict=True)
        return outputs | {p.name: actions for p, actions in found if p.shape is not None}

    def recorded(self, *, wide: bool) -> Record:
        """What a recorder of this kernel needs to know; `wide` as in `run_recorded`.

        Raises:
            Unsupported: the recorded variant cannot be made.
        """
        record = self._recorded(wide=wide).program.record
        assert record is not None
        return record

    def _recorded(self, *, wide: bool) -> Loaded:
        found = self._loaded.recorded.get(wide)
        if found is None:
            options = Options(guard=self._loaded.guard, recorded=True, wide=wide)
            program = generate(self.prim_func, options)
            number = f"{self._loaded.filename.rstrip('>').split()[-1]} recorded"
            found = load_program(
                program, f"{number} wide" if wide else number, guard=self._loaded.guard
            )
            self._loaded.recorded[wide] = found
        return found

    def run_recorded(
        self, values: Mapping[str, Any], symbols: Mapping[str, int], recorder: Any, *, wide: bool
    ) -> None:
        """Run the recorded variant on arguments by name; with `wide` every float is a float64.

        A wide run changes no argument.
        """
        arguments = [values[p.name] for p in self._parameters]
        for _ in self._run(
            current(), arguments, dict(symbols), self._recorded(wide=wide), recorder, wide=wide
        ):
            raise AssertionError("a recorded program waits for nothing")

    def _run(
        self,
        session: Session | None,
        values: list[Any],
        symbols: dict[str, int],
        loaded: Loaded | None = None,
        watch: Any = None,
        *,
        wide: bool = False,
    ) -> Iterator[BlockLaunch]:
        """Run a variant of the program; a sanitized or recorded one calls `watch`.

        The session is that of the call: a launch of a simulated rank may run in another thread.
        """
        recorder = session.recorder if session is not None else None
        if loaded is None:
            loaded = self._loaded
            if (loaded.program.counted is None) is not (recorder is None):
                loaded = self._variant(_NONE, False, recorder is not None)
        more = [] if watch is None else [watch]
        if recorder is not None and loaded.program.counted is not None:
            more.append(recorder.of(loaded.program))
        moved: list[tuple[Any, Any, Any]] = []
        blocks: BlockLaunch | None = None
        with environment(session):
            arguments = [
                self._argument(p, v, moved, symbols)
                for p, v in zip(self._parameters, values, strict=True)
            ]
            if wide:
                arguments = [
                    _wide(p, v, a)
                    for p, v, a in zip(self._parameters, values, arguments, strict=True)
                ]
            try:
                blocks = loaded.function(
                    *arguments, *(symbols[n] for n in self._program.symbols), *more
                )
            except Born:
                raise
            except Exception as error:
                raise self._located(error, loaded) from error
            finally:
                for flat, where, logical in moved:
                    flat[where] = logical
        if blocks is not None:
            if moved:
                raise Unsupported(
                    f"kernel {self._program.name}: the interpreter does not model a layout of "
                    "global memory in a kernel that waits for flags"
                )
            blocks.located = lambda error: self._located(error, loaded)
            blocks.around = lambda: environment(session)
            yield blocks

    def _argument(
        self,
        p: Parameter,
        value: Any,
        moved: list[tuple[Any, Any, Any]],
        symbols: dict[str, int],
    ) -> Any:
        if p.shape is None:
            if p.dtype.startswith(("int", "uint")):
                return int(value)
            if p.dtype == "bool":
                return bool(value)
            low = _CODEC_OF.get(TILE_DTYPES[p.dtype].torch)
            if low is not None:
                return low.round(float(value))
            return np.float64(value) if p.dtype == "float64" else np.float32(value)
        if value is None:
            return None
        tensor = value.detach()
        codec = _CODEC_OF.get(tensor.dtype)
        array = codec.view(tensor) if codec is not None else tensor.numpy()
        layout = self._program.layouts.get(p.name)
        if layout is None:
            return array
        key = (p.name, array.shape, *symbols.values())
        if key not in self._layouts:
            together = self._program.together.get(p.name, 1)
            self._layouts[key] = positions(layout, array.shape, p.name, symbols, together)
        where = self._layouts[key]
        flat = array.reshape(-1)
        logical = flat[where]
        moved.append((flat, where, logical))
        return logical

    def _located(self, error: Exception, loaded: Loaded) -> Exception:
        """The error with the user's line, found through the generated line that was running."""
        location: Location | None = None
        generated = ""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == loaded.filename:
                location = loaded.program.locations[trace.tb_lineno - 1]
                generated = loaded.program.source.splitlines()[trace.tb_lineno - 1].strip()
            trace = trace.tb_next
        place = location or written_at(self.prim_func) or "an unknown line"
        where = f"{place}, in kernel {self._program.name}"
        if isinstance(error, InterpreterError):
            return type(error)(f"{error}\n  at {where}")
        if isinstance(error, Unsupported):
            return Unsupported(f"{error}\n  at {where}")
        if isinstance(error, AssertionError):
            return InterpreterError(f"assertion failed: {error}\n  at {where}")
        return InterpreterError(
            f"the interpreter failed: {type(error).__name__}: {error}\n  at {where}\n"
            f"  in the generated line: {generated}"
        )


@contextmanager
def environment(session: Session | None) -> Iterator[None]:
    """What generated programs of a session run in."""
    threads = torch.get_num_threads()
    tf32 = TF32.set((session is not None and session.tf32) or TF32.get())
    hopper = session is not None and session.arch.startswith("sm_90")
    bits = FLOAT8_BITS.set(_HOPPER_FLOAT8_BITS if hopper else FLOAT8_BITS.get())
    if threads != 1:
        # Tiles are too small to share: a second thread costs more than it brings.
        torch.set_num_threads(1)
    try:
        with np.errstate(all="ignore"), unseen(), torch._C.DisableTorchFunction():  # noqa: SLF001
            yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)
        FLOAT8_BITS.reset(bits)
        TF32.reset(tf32)


def unseen() -> AbstractContextManager[object]:
    """Inside, no dispatch mode of a caller sees what is done with tensors here."""
    if torch._C._len_torch_dispatch_stack() > 0:  # noqa: SLF001
        modes: AbstractContextManager[object] = _python_dispatch._disable_current_modes()  # noqa: SLF001
        return modes
    return nullcontext()


def _wide(p: Parameter, value: Any, argument: Any) -> Any:
    """A float argument as float64; arrays are new."""
    if argument is None or (not p.dtype.startswith(("float", "bfloat"))):
        return argument
    if p.shape is None:
        return np.float64(value)
    codec = _CODEC_OF.get(TILE_DTYPES[p.dtype].torch)
    array = argument if codec is None else codec.widen(np.ascontiguousarray(argument))
    return np.array(array, np.float64)


@cache
def _limits(dtype: str) -> tuple[int, int]:
    """The least and the largest integer of a dtype."""
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _mentions(code: str, name: str) -> bool:
    import re

    return re.search(rf"\b{re.escape(name)}\b", code) is not None


def _normalized(out_idx: Sequence[int] | int | None, count: int) -> list[int]:
    if out_idx is None:
        return []
    found = []
    for raw in [out_idx] if isinstance(out_idx, int) else list(out_idx):
        index = int(raw) + count if int(raw) < 0 else int(raw)
        if not 0 <= index < count:
            raise ArgumentError(f"out_idx {raw} is out of range for {count} parameters")
        if index in found:
            raise ArgumentError(f"out_idx names parameter {index} twice")
        found.append(index)
    return found
