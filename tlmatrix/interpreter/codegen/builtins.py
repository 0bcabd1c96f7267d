"""CUDA's own functions, called by their C names (`T.call_extern("int32", "__popc", x)`).

Each becomes the operation of TileLang that does the same, so that the rest of the generator knows
one name a thing. A function that has a model of the user's (`model_extern`) stays a call of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.externs import is_modelled

from .expressions import op_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HALF_TOWARD_ZERO", "without_builtins"]

HALF_TOWARD_ZERO = "__float2half_rz"

# Operations of the same arguments.
_SAME = {
    "__match_any_sync": "tl.match_any_sync",
    "__any_sync": "tl.any_sync",
    "__all_sync": "tl.all_sync",
    "__ballot_sync": "tl.ballot_sync",
    "__activemask": "tl.activemask",
    "__syncwarp": "tl.sync_warp",
    "__syncthreads_count": "tl.syncthreads_count",
    "__syncthreads_and": "tl.syncthreads_and",
    "__syncthreads_or": "tl.syncthreads_or",
    "__popc": "tirx.popcount",
    "__popcll": "tirx.popcount",
    "__clz": "tirx.clz",
    "__clzll": "tirx.clz",
    "__ffs": "tl.__ffs",
    "__ffsll": "tl.__ffs",
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
    "roundf": "tirx.round",
}
_SHUFFLES = {f"__shfl{kind}_sync": f"tl.shfl{kind}_sync" for kind in ("", "_xor", "_down", "_up")}
_BITS = {
    f"__{source}_as_{target}"
    for source, target in (
        ("float", "int"),
        ("float", "uint"),
        ("int", "float"),
        ("uint", "float"),
        ("half", "short"),
        ("half", "ushort"),
        ("short", "half"),
        ("ushort", "half"),
    )
}
_CASTS = frozenset(
    {"__float2half", "__float2half_rn", "__half2float", "__float2bfloat16", "__bfloat162float"}
    | {"__float2bfloat16_rn", "__int2float_rn", "__uint2float_rn", "__float2int_rz"}
    | {"__float2uint_rz", "__float2ll_rz"}
)
# Ways to round to an integer: what is done before the cast.
_ROUNDED = {"rn": "tirx.nearbyint", "rd": "tirx.floor", "ru": "tirx.ceil"}


def without_builtins(func: Any) -> Any:
    """A PrimFunc that calls none of CUDA's own functions by name; the same if it has no such."""
    from tilelang import tvm

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tvm.tirx.Call):
            found = found or _replacement(node) is not None

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    if not found:
        return func

    def replaced(node: Any) -> Any:
        make = _replacement(node)
        return None if make is None else make()

    body = tvm.tirx.stmt_functor.ir_transform(func.body, None, replaced, ["tirx.Call"])
    return func.with_body(body)


def _replacement(call: Any) -> Callable[[], Any] | None:
    """What makes the operation that a call stands for; None for any other call."""
    if op_name(call) != "tirx.call_extern":
        return None
    name = str(getattr(call.args[0], "value", call.args[0])).removeprefix("::")
    dtype, arguments = str(call.dtype), list(call.args[1:])
    if is_modelled(name):
        return None
    if name in ("__syncthreads", "__syncwarp"):
        return lambda: _synchronize(name)
    if name in _SAME:
        return lambda: _operation(_SAME[name], dtype, arguments)
    if name in _SHUFFLES:
        return lambda: _operation(_SHUFFLES[name], dtype, _with_width(arguments))
    if name in _BITS:
        return lambda: _operation("tirx.reinterpret", dtype, arguments)
    if name in _CASTS:
        return lambda: _cast(dtype, arguments[0])
    if name in ("fmaxf", "fminf", "max", "min") and len(arguments) == 2:
        return lambda: _extreme(name, *arguments)
    if name.startswith(("__float2int_", "__float2uint_", "__float2ll_")):
        before = _ROUNDED.get(name.rpartition("_")[2])
        if before is not None:
            return lambda: _cast(dtype, _operation(before, "float32", arguments))
    return None


def _operation(name: str, dtype: str, arguments: list[Any]) -> Any:
    from tilelang import tvm

    # TileLang's ballots have 64 bits, CUDA's have 32.
    made = "uint64" if name in ("tl.ballot_sync", "tl.activemask") else dtype
    call = tvm.tirx.Call(made, tvm.ir.Op.get(name), arguments)
    return call if made == dtype else _cast(dtype, call)


def _synchronize(name: str) -> Any:
    from tilelang import tvm

    if name == "__syncwarp":
        return tvm.tirx.Call("void", tvm.ir.Op.get("tl.sync_warp"), [])
    scope = tvm.tirx.StringImm("shared")
    return tvm.tirx.Call("void", tvm.ir.Op.get("tirx.tvm_storage_sync"), [scope])


def _with_width(arguments: list[Any]) -> list[Any]:
    from tilelang import tvm

    return arguments if len(arguments) == 4 else [*arguments, tvm.tirx.const(32, "int32")]


def _cast(dtype: str, value: Any) -> Any:
    from tilelang import tvm

    return value if str(value.dtype) == dtype else tvm.tirx.Cast(dtype, value)


def _extreme(name: str, a: Any, b: Any) -> Any:
    from tilelang import tvm

    return (tvm.tirx.Max if "max" in name else tvm.tirx.Min)(a, b)
