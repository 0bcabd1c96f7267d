"""What TileLang's passes make of a kernel: its device functions, and the host code around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import Unsupported
from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all, saved
from tlmatrix.interpreter.ir.rewrites import without_externs
from tlmatrix.interpreter.ir.walk import walk
from tlmatrix.interpreter.patching import TRACING, without_warnings

from . import arithmetic, copies, matrices, threads
from .emit import Emitter, device_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .program import DeviceProgram

HANDLERS = {
    **arithmetic.OPERATIONS,
    **copies.OPERATIONS,
    **threads.OPERATIONS,
    **matrices.OPERATIONS,
}
"""Operations of lowered code by name."""

_TO_THREADS = "tl.LowerTileOp"
"""The pass after which IR says what each thread does."""
_DESCRIPTOR = "__tvm_tensormap_create_tiled"
_IM2COL = "__tvm_tensormap_create_im2col"
_IGNORED = ("__tvm_set_device",)
_GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_SHARED_BYTES = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Lowered:
    """A PrimFunc after TileLang's passes.

    Attributes:
        func: the PrimFunc.
        host: the IRModule of the function that launches kernels.
        device: the IRModule of the functions that run on a GPU.
        inferred: the PrimFunc with the layouts of its fragments.
        stages: the names of passes that lower tiles to threads and later ones, each with the
            IRModule after it, if they were asked for.
    """

    func: Any
    host: Any
    device: Any
    inferred: Any
    stages: tuple[tuple[str, Any], ...] = ()

    @property
    def descriptors(self) -> list[Any]:
        """The arguments of each TMA descriptor that host code makes.

        They are: name, descriptor, dtype, rank, address of the tensor, shape, strides in bytes, ...
        """
        found: list[Any] = []
        for function in self.host.functions.values():
            found += (function.attrs or {}).get("tma_descriptor_args", {}).values()
        return found

    def saved(self) -> str:
        """The JSON of all but the stages."""
        from tvm_ffi.serialization import to_json_graph_str

        return str(to_json_graph_str([self.func, self.host, self.device, self.inferred]))


def restored(text: str) -> Lowered:
    """What `Lowered.saved` gave the JSON of; its variables are no longer those of the caller."""
    from tvm_ffi.serialization import from_json_graph_str  # `load_json` first looks for old forms

    return Lowered(*from_json_graph_str(text))


def lower(func: Any, arch: str, configs: Mapping[str, Any], *, stages: bool = False) -> Lowered:
    """Run TileLang's passes up to code generation; takes seconds.

    Raises:
        Unsupported: TileLang cannot lower the kernel; says what it raised.
    """
    from tilelang import tvm
    from tilelang.engine.lower import lower_to_host_device_ir

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    inferred: list[Any] = []
    after: list[tuple[str, Any]] = []

    def keep(_self: Any, module: Any, info: Any) -> None:
        if stages and (after or info.name == _TO_THREADS):
            after.append((str(info.name), module))
        if info.name == "tl.LayoutInference":
            inferred.extend(f for f in module.functions.values() if hasattr(f, "body"))

    instrument = tvm.ir.instrument.pass_instrument(type("Keep", (), {"run_after_pass": keep}))()
    options = {"config": dict(configs), "instruments": [instrument]}
    try:
        with (
            TRACING,
            without_warnings(),
            target,
            tvm.transform.PassContext(opt_level=3, **options),
        ):
            host, device = lower_to_host_device_ir(func, _backend_context(target))[:2]
    except Exception as error:  # whatever the compiler raises
        lines = str(error).strip().splitlines() or [""]
        raise Unsupported(
            f"TileLang cannot lower it for {arch}: {type(error).__name__}: {lines[-1]}"
        ) from error
    return Lowered(func, host, device, inferred[-1] if inferred else None, tuple(after))


def _backend_context(target: Any) -> Any:
    """What `lower_to_host_device_ir` takes: before TileLang 0.1.14 the target itself."""
    try:
        from tilelang.backend.module import create_backend_context
    except ModuleNotFoundError:
        return target
    return create_backend_context(target, None, "auto")


# What a launch needs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """A call of a device function by host code.

    Attributes:
        function: its name.
        arguments: expressions of the host code, one for each parameter.
        grid: extents, x first.
        shared_bytes: of dynamic shared memory; None without any.
    """

    function: str
    arguments: tuple[Any, ...]
    grid: tuple[Any, ...]
    shared_bytes: Any


@dataclass(frozen=True)
class DescriptorCall:
    """A TMA descriptor that host code makes: its variable, and the arguments of the call."""

    variable: ir.Var
    arguments: tuple[Any, ...]
    im2col: bool = False


@dataclass(frozen=True)
class LoweredKernel:
    """The programs of a kernel's device functions, and how host code launches them.

    Attributes:
        kernel: the traced PrimFunc: parameters and buffers.
        steps: what host code does, in order.
        programs: of device functions by name.
    """

    kernel: ir.Kernel
    steps: tuple[Any, ...]
    programs: dict[str, DeviceProgram]


def lowered_kernel(code: Lowered) -> LoweredKernel:
    """The programs of a lowered kernel.

    Raises:
        Unsupported: for an operation that is not modelled; names it and its line.
    """
    kernel, steps, functions = parsed(code)
    programs = {f.name: Emitter(f, HANDLERS).program() for f in functions}
    return LoweredKernel(kernel, steps, programs)


def parsed(code: Lowered) -> tuple[ir.Kernel, tuple[Any, ...], list[ir.Kernel]]:
    """The traced kernel, the steps of its host code, and its device functions.

    Raises:
        Unsupported: the host code does more than launch kernels.
    """
    from tilelang import tvm

    hosts, devices = list(code.host.functions.values()), list(code.device.functions.values())
    if len(hosts) != 1:
        raise Unsupported(f"{len(hosts)} host functions in lowered code")
    names = [[str(p) for p in f.attrs["tirx.kernel_launch_params"]] for f in devices]
    text = tvm.ir.save_json(tvm.runtime.convert([code.func, hosts[0], *devices]))
    kernel, host, *functions = read_all(text)
    functions = [without_externs(each) for each in functions]
    axes = {f.name: tags for f, tags in zip(functions, names, strict=True)}
    parameters = {f.name: len(f.params) for f in functions}
    return kernel, tuple(_steps(host.body, axes, parameters)), functions


def stage_kernel(module: Any) -> LoweredKernel:
    """The program of a kernel in the middle of TileLang's passes, after tiles became threads.

    Raises:
        Unsupported: the stage cannot be run by itself.
    """
    functions = list(module.functions.values())
    if len(functions) != 1 or not functions[0].buffer_map:
        raise Unsupported(f"{len(functions)} functions in the middle of passes")
    kernel: ir.Kernel = without_externs(read_all(saved(functions[0])))
    extents = {
        str(node.node): node.value
        for node in walk(kernel.body)
        if isinstance(node, ir.AttrStmt) and node.attr_key == "thread_extent"
    }
    grid = tuple(extents[tag] for tag in _GRID if tag in extents)
    step = Launch(kernel.name, tuple(device_parameters(kernel)), grid, None)
    program = Emitter(kernel, HANDLERS).program()
    return LoweredKernel(kernel, (step,), {kernel.name: program})


def _steps(body: Any, axes: Mapping[str, Any], parameters: Mapping[str, int]) -> Any:
    """Bindings, workspaces, descriptors and launches of host code, in order."""
    for node in walk(body):
        if isinstance(node, ir.AllocBuffer):
            yield node
        if isinstance(node, ir.Bind) and node.var.dtype != "handle":
            yield node
        if isinstance(node, ir.For | ir.While):
            raise Unsupported("a loop in lowered host code")
        if not isinstance(node, ir.Call) or node.op not in (
            "tirx.tvm_call_packed",
            "tirx.call_packed",
            "tirx.tvm_call_packed_lowered",
        ):
            continue
        name = str(node.args[0].value)
        if name in (_DESCRIPTOR, _IM2COL):
            yield DescriptorCall(node.args[1], tuple(node.args[2:]), name == _IM2COL)
        elif name in axes:
            count = parameters[name]
            extents = dict(zip(axes[name], node.args[1 + count :], strict=False))
            yield Launch(
                name,
                tuple(node.args[1 : 1 + count]),
                tuple(extents[tag] for tag in _GRID if tag in extents),
                extents.get(_SHARED_BYTES),
            )
        elif name not in _IGNORED:
            raise Unsupported(f"a call of {name} in lowered host code")
