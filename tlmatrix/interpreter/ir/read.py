"""Reads a PrimFunc into `nodes`, from the JSON that TVM saves it as.

Attributes of TVM objects cost a foreign call each; the JSON has all of them at once, children
before parents, and is also what a program on disk is found by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tlmatrix.interpreter.errors import Unsupported

from . import nodes as ir

# TileLang's own macros (reductions, scans) carry lines of its library.
_LIBRARY = "/site-packages/tilelang/"
# TileLang's own dtypes; one of a single lane may end in its size.
_CUSTOM = re.compile(r"custom\[(\w+)\](?:8|32)?((?:x\d+)?)(?=\")")
_OLDER = '"tir.'
"""TVM's namespace in older releases of TileLang, whose lowered code nests what follows."""
_REGIONS = ("tl.region", "tl.tileop.region")

# By TVM's name of a node: the class, and its fields in the JSON, in the order of the class. Fields
# refer to other nodes by number, but those that start with "=" are values.
_NODES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    **{f"tirx.{kind.__name__}": (kind, ("=dtype", "a", "b")) for kind in ir.BINARY},
    "ir.IntImm": (ir.IntImm, ("=dtype", "=value")),
    "ir.FloatImm": (lambda dtype, value: ir.FloatImm(dtype, float(value)), ("=dtype", "=value")),
    "tirx.StringImm": (ir.StringImm, ("=dtype", "value")),
    "tirx.Cast": (ir.Cast, ("=dtype", "value")),
    "tirx.Not": (ir.Not, ("=dtype", "a")),
    "tirx.Select": (ir.Select, ("=dtype", "condition", "true_value", "false_value")),
    "tirx.Let": (ir.Let, ("=dtype", "var", "value", "body")),
    "tirx.BufferLoad": (ir.BufferLoad, ("=dtype", "buffer", "indices", "predicate")),
    "tirx.SeqStmt": (ir.SeqStmt, ("span", "seq")),
    "tirx.Bind": (ir.Bind, ("span", "var", "value")),
    "tirx.While": (ir.While, ("span", "condition", "body")),
    "tirx.IfThenElse": (ir.IfThenElse, ("span", "condition", "then_case", "else_case")),
    "tirx.AttrStmt": (ir.AttrStmt, ("span", "node", "attr_key", "value", "body")),
    "tirx.Evaluate": (ir.Evaluate, ("span", "value")),
    "tirx.BufferStore": (ir.BufferStore, ("span", "buffer", "value", "indices", "predicate")),
    "tirx.Block": (ir.Block, ("span", "alloc_buffers", "annotations", "body")),
    "tirx.SBlock": (ir.Block, ("span", "alloc_buffers", "annotations", "body")),
    # Nodes that stand for one of their fields.
    "tirx.BlockRealize": (lambda block: block, ("block",)),
    "tirx.SBlockRealize": (lambda block: block, ("block",)),
    "tirx.AllocBuffer": (ir.AllocBuffer, ("span", "buffer")),
    "ir.PointerType": (lambda scope: scope, ("storage_scope",)),
    "ir.GlobalVar": (lambda name: name, ("name_hint",)),
    "ir.DictAttrs": (lambda attributes: attributes, ("__dict__",)),
    "ir.Range": (lambda low, extent: (low, extent), ("min", "extent")),
}
_SYMBOLS = {
    "tirx.EQ": "==",
    "tirx.NE": "!=",
    "tirx.LT": "<",
    "tirx.LE": "<=",
    "tirx.GT": ">",
    "tirx.GE": ">=",
}
_VALUES = ("ffi.String", "int", "float", "bool", "ffi.Bytes", "ir.SourceName", "ir.Op")


def saved(func: Any) -> str:
    """The JSON of a traced PrimFunc, not yet lowered.

    Raises:
        Unsupported: `func` is no PrimFunc.
    """
    if not hasattr(func, "buffer_map"):
        raise Unsupported(f"the interpreter runs PrimFuncs, got {type(func).__name__}")
    return _saved(func)


@lru_cache(maxsize=8)  # the variants of a program follow each other
def _saved(func: Any) -> str:
    from tilelang import tvm

    return str(tvm.ir.save_json(func))


def read_all(text: str) -> Any:
    """The object of any JSON that TVM saved; shared nodes are shared."""
    text = _CUSTOM.sub(r"\1\2", text)
    if _OLDER in text:
        text = text.replace(_OLDER, '"tirx.')
    graph = json.loads(text)
    found: list[Any] = []
    for node in graph["nodes"]:
        found.append(_read(node["type"], node.get("data"), found))  # reads itself
    return found[int(graph["root_index"])]


def _read(kind: str, data: Any, found: list[Any]) -> Any:
    """One node; `found` are those before it, to which it refers."""
    plain = _NODES.get(kind)
    if plain is not None:
        make, fields = plain
        return make(*[data[f[1:]] if f[0] == "=" else found[data[f]] for f in fields])
    if kind in _SYMBOLS:
        return ir.Compare(data["dtype"], found[data["a"]], found[data["b"]], _SYMBOLS[kind])
    if kind in _VALUES:
        return data
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(data, found)
    if kind.startswith("tirx."):
        # Refused where it is used, by name and with the user's line.
        return ir.Call((data or {}).get("dtype", ""), kind, (), {})
    return None


def _array(data: Any, found: list[Any]) -> tuple[Any, ...]:
    return tuple([found[k] for k in data])


def _map(data: Any, found: list[Any]) -> dict[Any, Any]:
    keys = (found[k] for k in data[::2])
    plain = (key.value if isinstance(key, ir.StringImm) else key for key in keys)
    return {key: found[v] for key, v in zip(plain, data[1::2], strict=True)}


def _span(data: Any, found: list[Any]) -> ir.Location | None:
    file = str(found[data["source_name"]])
    return None if _LIBRARY in file else ir.Location(file, int(data["line"]))


def _layout(data: Any, found: list[Any]) -> ir.Layout:
    thread = data.get("forward_thread")
    replicate = found[data["replicate_size"]] if "replicate_size" in data else None
    return ir.Layout(
        found[data["input_size"]],
        found[data["forward_index"]],
        None if thread is None else found[thread],
        1 if replicate is None else int(replicate.value),
    )


@ir.node
class _Handle(ir.Var):
    """A variable that points to memory of a scope."""

    scope: str


def _var(data: Any, found: list[Any]) -> ir.Var:
    scope = found[data["type_annotation"]]
    name = str(found[data["name"]])
    if data["dtype"] != "handle" or not isinstance(scope, str):
        return ir.Var(data["dtype"], name)
    return _Handle("handle", name, scope)


def _tagged(data: Any, found: list[Any]) -> str:
    tag = ir.ThreadTag(found[data["thread_tag"]])
    tag.var = found[data["var"]]
    return tag


def _ramp(data: Any, found: list[Any]) -> ir.Ramp:
    lanes = int(found[data["lanes"]].value)
    return ir.Ramp(data["dtype"], found[data["base"]], found[data["stride"]], lanes)


def _broadcast(data: Any, found: list[Any]) -> ir.Broadcast:
    return ir.Broadcast(data["dtype"], found[data["value"]], int(found[data["lanes"]].value))


def _buffer(data: Any, found: list[Any]) -> ir.Buffer:
    handle = found[data["data"]]
    shape, strides, offset = (found[data[n]] for n in ("shape", "strides", "elem_offset"))
    scope = getattr(handle, "scope", "") or "global"
    name = str(found[data["name"]])
    return ir.Buffer(
        name, handle, data["dtype"], shape, strides, offset, scope, found[data["span"]]
    )


def _call(data: Any, found: list[Any]) -> ir.Call | ir.Region:
    op, args = str(found[data["op"]]), found[data["args"]]
    if op in _REGIONS and isinstance(args[0], ir.BufferLoad):
        load, mode = args[0], args[1].value
        reads, writes = bool(mode & 1), bool(mode & 2)
        return ir.Region("handle", load.buffer, load.indices, tuple(args[2:]), reads, writes)
    annotations = found[data["annotations"]] if "annotations" in data else None
    return ir.Call(data["dtype"], op, args, annotations or {})


def _shuffle(data: Any, found: list[Any]) -> ir.Call:
    """The elements of vectors with the numbers `indices`."""
    indices = tuple(int(k.value) for k in found[data["indices"]])
    return ir.Call(data["dtype"], "tirx.Shuffle", found[data["vectors"]], {"indices": indices})


def _reducer(data: Any, found: list[Any]) -> ir.CommReducer:
    return ir.CommReducer(type(found[data["result"]][0]))


def _for(data: Any, found: list[Any]) -> ir.For:
    names = ("span", "loop_var", "min", "extent", "body", "thread_binding", "annotations")
    location, var, low, extent, body, tag, annotations = (found[data[n]] for n in names)
    step = found[data["step"]] if "step" in data else None
    kind = int(data["kind"])
    return ir.For(location, var, low, extent, kind, body, step, tag or "", annotations or {})


def _prim_func(data: Any, found: list[Any]) -> ir.Kernel:
    name = str((found[data["attrs"]] or {}).get("global_symbol", "kernel"))
    return ir.Kernel(name, *(found[data[field]] for field in ("params", "buffer_map", "body")))


def _allocate(data: Any, found: list[Any]) -> ir.Stmt:
    span, pointer = found[data["span"]], found[data["buffer_var"]]
    scope = getattr(pointer, "scope", "global")
    shape = found[data["extents"]]
    memory = ir.Buffer(pointer.name, pointer, data["dtype"], shape, (), None, scope, span)
    return _followed(ir.AllocBuffer(span, memory), data, found)


def _declared(data: Any, found: list[Any]) -> ir.Stmt:
    return _followed(ir.DeclBuffer(found[data["span"]], found[data["buffer"]]), data, found)


def _bound(data: Any, found: list[Any]) -> ir.Stmt:
    made = ir.Bind(found[data["span"]], found[data["var"]], found[data["value"]])
    return _followed(made, data, found)


def _assertion(data: Any, found: list[Any]) -> ir.Stmt:
    return _followed(ir.AssertStmt(found[data["span"]], found[data["condition"]]), data, found)


def _followed(statement: ir.Stmt, data: Any, found: list[Any]) -> ir.Stmt:
    """A statement and, in older releases of TileLang, what follows it."""
    if "body" not in data:
        return statement
    return ir.SeqStmt(found[data["span"]], (statement, found[data["body"]]))


_SPECIAL: dict[str, Callable[[Any, list[Any]], Any]] = {
    "tirx.Allocate": _allocate,
    "tirx.DeclBuffer": _declared,
    "tirx.LetStmt": _bound,
    "tirx.AssertStmt": _assertion,
    "ffi.Array": _array,
    "ffi.List": _array,
    "ffi.Map": _map,
    "ffi.Dict": _map,
    "ir.Span": _span,
    "tl.Layout": _layout,
    "tl.Fragment": _layout,
    "tirx.Var": _var,
    "tirx.SizeVar": _var,
    "tirx.Ramp": _ramp,
    "tirx.Broadcast": _broadcast,
    "tirx.Buffer": _buffer,
    "tirx.Call": _call,
    "tirx.CommReducer": _reducer,
    "tirx.Shuffle": _shuffle,
    "tirx.For": _for,
    "tirx.IterVar": _tagged,
    "tirx.PrimFunc": _prim_func,
}
