"""Kernels that run interpreted with TileLang's call semantics, and kernels that are only traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from tlmatrix.dtypes import TILE_DTYPES
from tlmatrix.interpreter.errors import EMPTY_TENSOR, ArgumentError, LaunchError, Unsupported
from tlmatrix.interpreter.generate import usage_of
from tlmatrix.interpreter.ir.read import saved
from tlmatrix.interpreter.ranks.streams import enqueue_kernel
from tlmatrix.interpreter.sync import context
from tlmatrix.interpreter.watch.nonfinite import Born

from . import lowering_check
from .alignment import Misaligned, Requirements, in_vectors, misaligned, requirements, unaligned
from .lowered import DeviceCode, LoweredCode, may_be_described
from .programs import kept, lowered_key, written_at
from .sanitized import misaligned_arguments, run_sanitized
from .session import UNROUNDED, current, environment, without_modes
from .signature import Arguments, Signature

if TYPE_CHECKING:
    from tlmatrix.interpreter.analysis.ownership import Fault
    from tlmatrix.interpreter.program import Record
    from tlmatrix.interpreter.sync.externs import BlockLaunch

    from .programs import LoadedProgram, Programs
    from .session import Session
    from .signature import Offsets


# A kernel that runs interpreted: TileLang's call semantics over generated programs ----------------

_DEFAULT_ARCH = "sm_90a"
_ALIGNMENT = frozenset({"alignment"})


class _Kernel:
    """What kernels have in common with TileLang's compiled ones.

    Attributes:
        prim_func: the traced PrimFunc.
        out_idx: indices of the parameters that are outputs.
    """

    prim_func: Any
    out_idx: list[int]
    latency: float | None = None
    config: dict[str, Any] | None = None
    ref_latency: float | None = None

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

        `assert_allclose` and the like call the kernel. `do_bench` raises `Unsupported`, and answers
        NaN in a program run by `tlmatrix exec`.
        """
        from tilelang.profiler import Profiler
        from tilelang.utils.tensor import TensorSupplyType

        supply = tensor_supply_type or TensorSupplyType.Auto
        return Profiler(self.params, self.out_idx, supply).with_default_adapter(self)

    def run_once(self, func: Any = None) -> Any:
        """Run on inputs that TileLang's profiler makes."""
        return self.get_profiler().run_once(func)


class InterpretedKernel(_Kernel):
    """What a `@tilelang.jit` factory returns under `interpret()`.

    Call it as a compiled kernel: inputs in the order of the PrimFunc's parameters without those
    of `out_idx`, which are allocated and returned.

    Attributes:
        prim_func: the traced PrimFunc.
        out_idx: indices of the parameters that are outputs.
        waits: whether its blocks wait for flags.
    """

    def __init__(
        self,
        programs: Programs,
        prim_func: Any,
        out_idx: Sequence[int] | int | None,
        *,
        session: Session | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> None:
        self.prim_func = prim_func
        self._programs = programs
        self._arch = session.arch if session is not None else ""
        self._configs = dict(configs or {})
        # The variant that this session runs, so that no other is generated for its signature.
        program = self.variant(session).program
        self._signature = Signature(program, out_idx)
        self._offsets: Offsets = {}
        self.name = program.name
        self.waits = program.waits
        self.out_idx = self._signature.out_idx

    def __repr__(self) -> str:
        return f"<InterpretedKernel {self.name}>"

    # -- what TileLang's compiled kernels have

    @cached_property
    def source(self) -> str:
        """The generated Python source, without sanitizers."""
        return self.variant(None).program.source

    @property
    def kernel_source(self) -> str:
        """The generated Python source, in place of a compiled kernel's CUDA."""
        return self.source

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """As `kernel_source`."""
        del kernel_only
        return self.source

    # -- variants and facts

    def variant(self, session: Session | None, *, traced: bool = False) -> LoadedProgram:
        """The program that runs in a session, or the one that traces values not finite for it."""
        arch, unrounded = self._arch or _DEFAULT_ARCH, UNROUNDED.get()
        if session is None or unrounded:
            return self._programs.variant(arch, unrounded=unrounded)
        observers = frozenset({"traced"} if traced else session.observing)
        # A program is not instrumented for the alignment of its arguments.
        return self._programs.variant(arch, session.sanitizers - _ALIGNMENT, observers)

    def _recorded(self, *, wide: bool) -> LoadedProgram:
        arch = self._arch or _DEFAULT_ARCH
        return self._programs.variant(arch, observers=frozenset({"recorded"}), wide=wide)

    def recorded(self, *, wide: bool) -> Record:
        """What a recorder of this kernel needs to know; `wide` as in `run_recorded`.

        Raises:
            Unsupported: the recorded variant cannot be made.
        """
        record: Record = self._recorded(wide=wide).program.plans["recorded"]
        return record

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the parameters that are outputs."""
        return frozenset(self._signature.parameters[k].name for k in self.out_idx)

    @cached_property
    def usage(self) -> dict[str, frozenset[str]]:
        """What the kernel does with each parameter: "read", "write", "atomic"."""
        parameters = self._signature.parameters
        outputs = {str(parameters[k].name): frozenset({"write"}) for k in self.out_idx}
        found = zip(parameters, usage_of(self.prim_func), strict=True)
        return outputs | {p.name: actions for p, actions in found if p.shape is not None}

    @cached_property
    def _described(self) -> frozenset[int]:
        """Positions of the parameters that have TMA descriptors."""
        if not self._arch or not self._moved:
            return frozenset()
        return frozenset(self._requirements.strides)

    @cached_property
    def _moved(self) -> frozenset[int]:
        """Positions of the parameters that may have TMA descriptors."""
        return may_be_described(self.prim_func, self._arch or _DEFAULT_ARCH)

    @cached_property
    def _in_vectors(self) -> frozenset[int]:
        """Positions of the parameters whose accesses may be vectorized."""
        return in_vectors(self.prim_func)

    @cached_property
    def _requirements(self) -> Requirements:
        """What the code that TileLang lowers the kernel to needs of its arguments."""
        with without_modes():
            return requirements(self.prim_func, self._arch or _DEFAULT_ARCH, self._configs)

    def misaligned(self, values: list[Any], symbols: Mapping[str, int]) -> list[Misaligned]:
        """The arguments of a launch that some access of the lowered kernel finds misaligned."""
        parameters = self._signature.parameters
        packed = self._signature.packed
        starts, rows = unaligned(self._arch or _DEFAULT_ARCH, parameters, values, packed)
        suspect = starts and starts & (self._in_vectors | self._moved)
        suspect = suspect or (rows and rows & self._moved)
        if not suspect:
            return []
        return misaligned(self._requirements, parameters, values, symbols)

    @cached_property
    def lowered_code(self) -> LoweredCode:
        """What TileLang lowers the kernel to; takes seconds."""
        with without_modes():
            return LoweredCode(self.prim_func, self._arch or _DEFAULT_ARCH, self._configs)

    @cached_property
    def _device_code(self) -> DeviceCode:
        """What TileLang lowers the kernel to, to be run."""
        return DeviceCode(self.prim_func, self._arch or _DEFAULT_ARCH, self._configs)

    @cached_property
    def misplaced(self) -> tuple[Fault, ...]:
        """Statements that access elements of fragments in threads that do not have them."""
        return self._faults("fragments", LoweredCode.misplaced)

    @cached_property
    def frees_early(self) -> tuple[Fault, ...]:
        """Copies of tensor memory that nothing orders before its release."""
        return self._faults("tensor-memory", LoweredCode.frees_early)

    @cached_property
    def sets_early(self) -> tuple[Fault, ...]:
        """Stores that nothing orders before the flag for other blocks."""
        return self._faults("stores-before-flags", LoweredCode.sets_early)

    def _faults(self, kind: str, find: Callable[[LoweredCode], list[Fault]]) -> tuple[Fault, ...]:
        """The faults of a kind in the lowered code; kept on disk."""

        def key() -> str:
            arch = self._arch or _DEFAULT_ARCH
            return f"{lowered_key(saved(self.prim_func), arch, self._configs)}-{kind}"

        return kept(key, tuple, lambda: tuple(find(self.lowered_code)))

    # -- calls

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
        values, symbols = self._signature.bind(args, lambda: self._requirements.unused)
        outputs = [values[k] for k in self.out_idx]
        session = current()
        self._check_described(values, session)
        rank = context.rank()
        if rank is not None:
            lend = rank.world.memory.borrowed
            values = [lend(v) if isinstance(v, torch.Tensor) else v for v in values]
            enqueue_kernel(self, lambda: self._launch(session, values, symbols, rank.number))
        else:
            for blocks in self._launch(session, values, symbols):
                blocks.run_alone()
        if len(outputs) == 1:
            return outputs[0]
        return outputs or None

    def _check_described(self, values: list[Any], session: Session | None) -> None:
        """Host code makes TMA descriptors before anything runs; CUDA has none of empty tensors."""
        for k, value in enumerate(values):
            if isinstance(value, torch.Tensor) and 0 in value.shape and k in self._described:
                name, shape = self._signature.parameters[k].name, tuple(value.shape)
                error = LaunchError.of(self.name, EMPTY_TENSOR, f"{name} of shape {shape}")
                raise self.variant(session).located(error, self.prim_func)

    def run_recorded(
        self, values: Mapping[str, Any], symbols: Mapping[str, int], recorder: Any, *, wide: bool
    ) -> None:
        """Run the recorded variant on arguments by name; with `wide` every float is a float64.

        A wide run changes no argument.
        """
        arguments = [values[p.name] for p in self._signature.parameters]
        loaded = self._recorded(wide=wide)
        for _ in self._run(loaded, current(), arguments, symbols, rec=recorder, wide=wide):
            raise AssertionError("a recorded program waits for nothing")

    # -- launches. Each yields the blocks of a kernel that waits for flags, to be run meanwhile.
    # The session is that of the call: a launch of a simulated rank may run in another thread.

    def _launch(
        self,
        session: Session | None,
        values: list[Any],
        symbols: Mapping[str, int],
        rank: int | None = None,
    ) -> Iterator[BlockLaunch]:
        """Run a launch, which a session may keep, so that it can be explained."""
        if session is not None and session.on_launch is not None:
            named = {p.name: v for p, v in zip(self._signature.parameters, values, strict=True)}
            with without_modes():
                session.on_launch(self, named, symbols)
        if session is None or session.log is None:
            yield from self._checked(session, values, symbols)
            return
        with without_modes():
            named = {p.name: v for p, v in zip(self._signature.parameters, values, strict=True)}
            launch = session.log.before(self, named, symbols, rank)
        yield from self._checked(session, values, symbols)
        with without_modes():
            launch.ended()
            session.trace_launch(launch)

    def _checked(
        self, session: Session | None, values: list[Any], symbols: Mapping[str, int]
    ) -> Iterator[BlockLaunch]:
        """Run a launch under the session's sanitizers."""
        if session is not None and session.lowered:
            yield from self._run_lowered(session, values, symbols)
            return
        if session is None or not session.sanitizers or UNROUNDED.get():
            yield from self._run(self.variant(session), session, values, symbols)
            return
        if session.sanitizers == _ALIGNMENT:
            with without_modes():
                session.add(misaligned_arguments(self, values, symbols))
            yield from self._run(self.variant(session), session, values, symbols)
            return

        def execute(values: list[Any], watch: Any, traced: bool) -> Iterator[BlockLaunch]:
            loaded = self.variant(session, traced=traced)
            return self._run(loaded, session, values, symbols, watch=watch)

        # No mode of a caller sees what is done; while blocks are run elsewhere none is changed.
        steps = run_sanitized(self, session, values, symbols, execute)
        while True:
            with without_modes():
                found = next(steps, None)
            if found is None:
                return
            yield found

    def _run_lowered(
        self, session: Session, values: list[Any], symbols: Mapping[str, int]
    ) -> Iterator[BlockLaunch]:
        """Run a launch as TileLang lowers it; compare it with the source if sanitizers ask for it.

        Raises:
            Unsupported: an operation is not modelled, or the kernel waits for other ranks.
        """
        if self.waits:
            raise Unsupported(f"kernel {self.name} waits for flags; lowered code runs one rank")
        compared = "lowering" in session.sanitizers
        before = lowering_check.copies(values) if compared else []
        with without_modes():
            session.add(self._device_code.run(values, session))
        if not compared or self._device_code.by_order:
            return
        source = lowering_check.copies(before)
        yield from self._run(self.variant(None), session, source, symbols)
        names = [p.name for p in self._signature.parameters]
        with without_modes():
            session.add(self._device_code.compare(names, before, source, values))

    def _run(
        self,
        loaded: LoadedProgram,
        session: Session | None,
        values: list[Any],
        symbols: Mapping[str, int],
        *,
        wide: bool = False,
        **watching: Any,
    ) -> Iterator[BlockLaunch]:
        """Run a program, with arguments for its observers besides those of the session."""
        program = loaded.program
        for name, other_half in session.observing.items() if session is not None else ():
            if name in program.plans:
                watching[program.arguments[name]] = other_half(program.plans[name])
        sizes = [symbols[name] for name in self._signature.symbols]
        with environment(session):
            arguments = Arguments(program, values, symbols, self._offsets, wide=wide)
            try:
                blocks = loaded.function(*arguments.values, *sizes, **watching)
            except Born:
                raise
            except Exception as error:
                raise loaded.located(error, self.prim_func) from error
            finally:
                arguments.write_back()
        if blocks is None:
            return
        if arguments.moved:
            raise Unsupported(
                f"kernel {self.name}: the interpreter does not model a layout of "
                "global memory in a kernel that waits for flags"
            )
        blocks.located = lambda error: loaded.located(error, self.prim_func)
        blocks.around = lambda: environment(session)
        yield blocks


# Kernels that are traced and never run: what code launches, for backends that compile it ----------
#
# `with traced(arch=...) as kernels:` gives every kernel called inside, once, with what TileLang
# would have compiled it with. Their outputs are zeros, so code that reads them goes on.


class TracedKernel(_Kernel):
    """What a `@tilelang.jit` factory returns under `traced()`.

    Attributes:
        name: the name of the PrimFunc.
        prim_func: the traced PrimFunc.
        out_idx: indices of the parameters that are outputs.
        pass_configs: TileLang's pass configurations, by their full names.
        compile_flags: flags for the device compiler.
        given_out_idx, given_configs, given_flags, execution_backend: as TileLang got them; they
            are part of its cache's key.
        place: where the PrimFunc was written, `file:line`; "" if unknown.
    """

    def __init__(
        self,
        prim_func: Any,
        out_idx: Sequence[int] | int | None,
        pass_configs: Mapping[Any, Any] | None,
        compile_flags: Sequence[str] | str | None,
        execution_backend: str | None = None,
    ) -> None:
        self.given_out_idx = out_idx
        self.given_configs = pass_configs
        self.given_flags = compile_flags
        self.execution_backend = execution_backend
        self.prim_func = prim_func
        self.name = str(prim_func.attrs["global_symbol"])
        count = len(prim_func.params)
        given = [out_idx] if isinstance(out_idx, int) else list(out_idx or ())
        self.out_idx = [int(k) + count if k < 0 else int(k) for k in given]
        self.pass_configs = {
            str(getattr(key, "value", key)): value for key, value in (pass_configs or {}).items()
        }
        self.compile_flags = (
            (compile_flags,) if isinstance(compile_flags, str) else tuple(compile_flags or ())
        )
        self.place = written_at(prim_func)

    def __repr__(self) -> str:
        return f"<TracedKernel {self.name}>"

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The traced PrimFunc as a script, in place of a compiled kernel's CUDA."""
        del kernel_only
        return str(self.prim_func)

    def __call__(self, *args: Any) -> Any:
        """Note the launch; outputs that TileLang would allocate are zeros.

        Raises:
            ArgumentError: for a wrong number of arguments.
        """
        parameters = list(self.prim_func.params)
        inputs = [p for k, p in enumerate(parameters) if k not in self.out_idx]
        if len(args) != len(inputs):
            raise ArgumentError(
                f"kernel {self.name} expected {len(inputs)} inputs, but {len(args)} are provided"
            )
        session = current()
        if session is not None and session.launched is not None:
            known = session.launched
            if not any(kernel is self for kernel in known):
                known.append(self)
        on_launch = None if session is None else session.on_launch
        if not self.out_idx and on_launch is None:
            return None
        sizes = self._sizes(zip(inputs, args, strict=True))
        outputs = [
            self._zeros(self.prim_func.buffer_map[parameters[k]], sizes) for k in self.out_idx
        ]
        if on_launch is not None:
            named = {self._name(p): value for p, value in zip(inputs, args, strict=True)}
            made = zip(self.out_idx, outputs, strict=True)
            named |= {self._name(parameters[k]): value for k, value in made}
            on_launch(self, named, {str(var.name): int(n.value) for var, n in sizes.items()})
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else outputs

    def _name(self, parameter: Any) -> str:
        return str(self.prim_func.buffer_map.get(parameter, parameter).name)

    def _sizes(self, arguments: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        """Symbolic dimensions, by what the arguments have in their place."""
        from tilelang import tvm

        sizes = {}
        for parameter, value in arguments:
            if parameter in self.prim_func.buffer_map:
                shape = self.prim_func.buffer_map[parameter].shape
                pairs = zip(shape, getattr(value, "shape", ()), strict=False)
            else:
                pairs = zip([parameter], [value] if isinstance(value, int) else [], strict=False)
            for extent, found in pairs:
                wanted, size = extent, found
                while isinstance(getattr(wanted, "b", None), tvm.tirx.IntImm):
                    constant = int(wanted.b.value)
                    match wanted:
                        case tvm.tirx.Mul():
                            size //= constant
                        case tvm.tirx.Add():
                            size -= constant
                        case tvm.tirx.Sub():
                            size += constant
                        case _:
                            break
                    wanted = wanted.a
                if isinstance(wanted, tvm.tirx.Var):
                    sizes[wanted] = tvm.tirx.IntImm(wanted.dtype, size)
        return sizes

    def _zeros(self, buffer: Any, sizes: Mapping[Any, Any]) -> torch.Tensor:
        from tilelang import tvm

        substitute, simplify = tvm.tirx.stmt_functor.substitute, tvm.arith.Analyzer().simplify
        shape = [int(simplify(substitute(size, sizes))) for size in buffer.shape]
        dtype = TILE_DTYPES[str(buffer.dtype)]
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - the mode of a device that is simulated
            return torch.zeros(dtype.tensor_shape(shape), dtype=dtype.torch)
