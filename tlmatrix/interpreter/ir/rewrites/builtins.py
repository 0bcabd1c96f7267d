"""CUDA's own functions, called by their C names (`T.call_extern("int32", "__popc", x)`).

Each becomes the operation of TileLang that does the same. A function that has a model of the
user's (`model_extern`) stays a call of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.walk import calls, transform

if TYPE_CHECKING:
    from collections.abc import Callable

HALF_TOWARD_ZERO = "__float2half_rz"

# Operations of the same arguments.
_SAME = {
    "__match_any_sync": "tl.match_any_sync",
    "__any_sync": "tl.any_sync",
    "__all_sync": "tl.all_sync",
    "__ballot_sync": "tl.ballot_sync",
    "__activemask": "tl.activemask",
    "__syncthreads_count": "tl.syncthreads_count",
    "__syncthreads_and": "tl.syncthreads_and",
    "__syncthreads_or": "tl.syncthreads_or",
    "__popc": "tirx.popcount",
    "__popcll": "tirx.popcount",
    "__clz": "tirx.clz",
    "__clzll": "tirx.clz",
    "__ffs": "tl.__ffs",
    "__ffsll": "tl.__ffs",
    "__fns": "tl.__fns",
    "fmaf": "tl.ieee_fmaf",
    "__fmaf_rn": "tl.ieee_fmaf",
    "__fadd_rn": "tl.ieee_add",
    "__fsub_rn": "tl.ieee_sub",
    "__fmul_rn": "tl.ieee_mul",
    "__fdiv_rn": "tl.ieee_fdiv",
    "__fdividef": "tl.ieee_fdiv",
    "__frcp_rn": "tl.ieee_frcp",
    "__fsqrt_rn": "tl.ieee_fsqrt",
    "__frsqrt_rn": "tl.ieee_frsqrt",
    **{f"{name}f": f"tirx.{name}" for name in ("exp", "exp2", "exp10", "log", "log2", "log10")},
    **{f"{name}f": f"tirx.{name}" for name in ("log1p", "sqrt", "rsqrt", "tanh", "erf", "pow")},
    **{f"{name}f": f"tirx.{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "atan2")},
    **{f"{name}f": f"tirx.{name}" for name in ("fabs", "floor", "ceil", "trunc", "fmod")},
    **{f"{name}f": f"tirx.{name}" for name in ("copysign", "hypot", "ldexp")},
    **{f"__{name}f": f"tirx.{name}" for name in ("exp", "exp10", "log", "log2", "log10")},
    **{f"__{name}f": f"tirx.{name}" for name in ("sin", "cos", "tan", "pow")},
    "fabsf": "tirx.fabs",
    "rintf": "tirx.nearbyint",
    "nearbyintf": "tirx.nearbyint",
    "roundf": "tl.round_ties_away_from_zero",
}
_SHUFFLES = {f"__shfl{kind}_sync": f"tl.shfl{kind}_sync" for kind in ("", "_xor", "_down", "_up")}
_BITS = {
    f"__{source}_as_{target}"
    for one, other in (("float", "int"), ("float", "uint"), ("half", "short"), ("half", "ushort"))
    for source, target in ((one, other), (other, one))
}
_CASTS = frozenset(
    {"__float2half", "__float2half_rn", "__half2float", "__float2bfloat16", "__bfloat162float"}
    | {"__float2bfloat16_rn", "__int2float_rn", "__uint2float_rn", "__float2int_rz"}
    | {"__float2uint_rz", "__float2ll_rz"}
)
# Ways to round to an integer: what is done before the cast.
_ROUNDED = {"rn": "tirx.nearbyint", "rd": "tirx.floor", "ru": "tirx.ceil"}


def extern_name(call: ir.Call) -> str:
    """The function that `T.call_extern` calls."""
    return str(getattr(call.args[0], "value", call.args[0]))


def without_builtins(kernel: ir.Kernel, is_modelled: Callable[[str], bool]) -> ir.Kernel:
    """The kernel without calls of CUDA's own functions by name."""
    if not calls(kernel.body, "tirx.call_extern"):
        return kernel

    def replaced(node: Any) -> Any:
        if not isinstance(node, ir.Call) or node.op != "tirx.call_extern":
            return None
        name = extern_name(node).removeprefix("::")
        return None if is_modelled(name) else _operation_of(name, node)

    return replace(kernel, body=transform(kernel.body, replaced))


def _operation_of(name: str, call: ir.Call) -> ir.Expr | None:
    """The operation that a call stands for; None for any other function."""
    dtype, arguments = call.dtype, call.args[1:]
    if name == "__syncwarp":
        return ir.Call("void", "tl.sync_warp", (), {})
    if name == "__syncthreads":
        return ir.Call("void", "tirx.tvm_storage_sync", (ir.StringImm("handle", "shared"),), {})
    if name == "__nanosleep":
        return ir.IntImm("int32", 0)  # there is no time
    if name in _SAME:
        return _operation(_SAME[name], dtype, arguments)
    if name in _SHUFFLES:
        width = () if len(arguments) == 4 else (ir.IntImm("int32", 32),)
        return _operation(_SHUFFLES[name], dtype, (*arguments, *width))
    if name in _BITS:
        return _operation("tirx.reinterpret", dtype, arguments)
    if name in _CASTS:
        return _cast(dtype, arguments[0])
    if name in ("fmaxf", "fminf", "max", "min") and len(arguments) == 2:
        extreme = ir.Max if "max" in name else ir.Min
        return extreme(arguments[0].dtype, *arguments)
    if name.startswith(("__float2int_", "__float2uint_", "__float2ll_")):
        before = _ROUNDED.get(name.rpartition("_")[2])
        if before is not None:
            return _cast(dtype, _operation(before, "float32", arguments))
    return None


def _operation(name: str, dtype: str, arguments: tuple[Any, ...]) -> ir.Expr:
    # TileLang's ballots have 64 bits, CUDA's have 32.
    made = "uint64" if name in ("tl.ballot_sync", "tl.activemask") else dtype
    return _cast(dtype, ir.Call(made, name, arguments, {}))


def _cast(dtype: str, value: ir.Expr) -> ir.Expr:
    return value if value.dtype == dtype else ir.Cast(dtype, value)
