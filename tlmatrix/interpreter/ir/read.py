"""Reads a PrimFunc into `nodes`, from the JSON that TVM saves it as.

Attributes of TVM objects cost a foreign call each; the JSON has all of them at once, children
before parents, and is also what a program on disk is found by.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tlmatrix.interpreter.errors import Unsupported

from . import nodes as ir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["read_all", "read_kernel", "saved"]

# TileLang's own macros (reductions, scans) carry lines of its library.
_LIBRARY = "/site-packages/tilelang/"
_REGIONS = ("tl.region", "tl.tileop.region")
_BINARY: dict[str, type[ir.Binary]] = {f"tirx.{kind.__name__}": kind for kind in ir.BINARY}
_SYMBOLS = {
    "tirx.EQ": "==",
    "tirx.NE": "!=",
    "tirx.LT": "<",
    "tirx.LE": "<=",
    "tirx.GT": ">",
    "tirx.GE": ">=",
}


def saved(func: Any) -> str:
    """The JSON of a traced PrimFunc, not yet lowered.

    Raises:
        Unsupported: `func` is no PrimFunc.
    """
    if not hasattr(func, "buffer_map"):
        raise Unsupported(f"the interpreter runs PrimFuncs, got {type(func).__name__}")
    from tilelang import tvm

    return str(tvm.ir.save_json(func))


def read_kernel(text: str) -> ir.Kernel:
    """The kernel of `saved` JSON."""
    kernel: ir.Kernel = read_all(text)
    return kernel


def read_all(text: str) -> Any:
    """The object of any JSON that TVM saved; shared nodes are shared."""
    saved_nodes = json.loads(text)
    found: list[Any] = []
    for node in saved_nodes["nodes"]:
        kind = node["type"]
        data = node.get("data")
        binary = _BINARY.get(kind)
        if binary is not None:
            found.append(binary(data["dtype"], found[data["a"]], found[data["b"]]))
            continue
        make = _READERS.get(kind)
        if make is not None:
            found.append(make(data, found))
        elif kind.startswith("tirx."):
            # Refused where it is used, by name and with the user's line.
            found.append(ir.Call((data or {}).get("dtype", ""), kind, (), {}))
        else:
            found.append(None)
    return found[int(saved_nodes["root_index"])]


_READERS: dict[str, Callable[[Any, list[Any]], Any]] = {}


def _reader(*kinds: str) -> Callable[[Callable[[Any, list[Any]], Any]], Any]:
    def register(function: Callable[[Any, list[Any]], Any]) -> Any:
        _READERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def _location(data: Mapping[str, Any], found: list[Any]) -> ir.Location | None:
    location: ir.Location | None = found[data["span"]]
    return location


# Constants and containers -----------------------------------------------------------------


@_reader("ffi.String", "int", "float", "bool", "ffi.Bytes")
def _plain(data: Any, found: list[Any]) -> Any:
    del found
    return data


@_reader("ffi.Array", "ffi.List")
def _array(data: Any, found: list[Any]) -> tuple[Any, ...]:
    return tuple([found[k] for k in data])


@_reader("ffi.Map", "ffi.Dict")
def _map(data: Any, found: list[Any]) -> dict[Any, Any]:
    return {_plain_key(found[k]): found[v] for k, v in zip(data[::2], data[1::2], strict=True)}


def _plain_key(key: Any) -> Any:
    return key.value if isinstance(key, ir.StringImm) else key


@_reader("ir.DictAttrs")
def _attributes(data: Any, found: list[Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = found[data["__dict__"]]
    return attributes


@_reader("ir.SourceName", "ir.Op")
def _name(data: Any, found: list[Any]) -> str:
    del found
    return str(data)


@_reader("ir.GlobalVar")
def _global(data: Any, found: list[Any]) -> str:
    return str(found[data["name_hint"]])


@_reader("ir.Span")
def _span(data: Any, found: list[Any]) -> ir.Location | None:
    file = str(found[data["source_name"]])
    return None if _LIBRARY in file else ir.Location(file, int(data["line"]))


@_reader("ir.PointerType")
def _pointer(data: Any, found: list[Any]) -> str:
    return str(found[data["storage_scope"]])


@_reader("ir.Range")
def _range(data: Any, found: list[Any]) -> tuple[Any, Any]:
    return found[data["min"]], found[data["extent"]]


@_reader("tl.Layout", "tl.Fragment")
def _layout(data: Any, found: list[Any]) -> ir.Layout:
    thread = data.get("forward_thread")
    replicate = found[data["replicate_size"]] if "replicate_size" in data else None
    return ir.Layout(
        found[data["input_size"]],
        found[data["forward_index"]],
        None if thread is None else found[thread],
        1 if replicate is None else int(replicate.value),
    )


# Expressions ------------------------------------------------------------------------------


@_reader("ir.IntImm")
def _int(data: Any, found: list[Any]) -> ir.IntImm:
    del found
    return ir.IntImm(data["dtype"], data["value"])


@_reader("ir.FloatImm")
def _float(data: Any, found: list[Any]) -> ir.FloatImm:
    del found
    return ir.FloatImm(data["dtype"], float(data["value"]))


@_reader("tirx.StringImm")
def _string(data: Any, found: list[Any]) -> ir.StringImm:
    return ir.StringImm(data["dtype"], found[data["value"]])


class _Handle(ir.Var):
    """A variable that points to memory of a scope."""

    __slots__ = ("scope",)


@_reader("tirx.Var", "tirx.SizeVar")
def _var(data: Any, found: list[Any]) -> ir.Var:
    kind = found[data["type_annotation"]]
    if data["dtype"] == "handle" and isinstance(kind, str):
        handle = _Handle("handle", str(found[data["name"]]))
        object.__setattr__(handle, "scope", kind)
        return handle
    return ir.Var(data["dtype"], str(found[data["name"]]))


@_reader("tirx.Cast")
def _cast(data: Any, found: list[Any]) -> ir.Cast:
    return ir.Cast(data["dtype"], found[data["value"]])


@_reader("tirx.Not")
def _not(data: Any, found: list[Any]) -> ir.Not:
    return ir.Not(data["dtype"], found[data["a"]])


def _comparison(kind: str) -> Callable[[Any, list[Any]], Any]:
    symbol = _SYMBOLS[kind]

    def read(data: Any, found: list[Any]) -> ir.Compare:
        return ir.Compare(data["dtype"], found[data["a"]], found[data["b"]], symbol)

    return read


for _kind in _SYMBOLS:
    _READERS[_kind] = _comparison(_kind)


@_reader("tirx.Select")
def _select(data: Any, found: list[Any]) -> ir.Select:
    parts = (found[data[part]] for part in ("condition", "true_value", "false_value"))
    return ir.Select(data["dtype"], *parts)


@_reader("tirx.Ramp")
def _ramp(data: Any, found: list[Any]) -> ir.Ramp:
    lanes = int(found[data["lanes"]].value)
    return ir.Ramp(data["dtype"], found[data["base"]], found[data["stride"]], lanes)


@_reader("tirx.Broadcast")
def _broadcast(data: Any, found: list[Any]) -> ir.Broadcast:
    return ir.Broadcast(data["dtype"], found[data["value"]], int(found[data["lanes"]].value))


@_reader("tirx.Let")
def _let(data: Any, found: list[Any]) -> ir.Let:
    return ir.Let(data["dtype"], *(found[data[part]] for part in ("var", "value", "body")))


@_reader("tirx.Buffer")
def _buffer(data: Any, found: list[Any]) -> ir.Buffer:
    handle = found[data["data"]]
    return ir.Buffer(
        str(found[data["name"]]),
        handle,
        data["dtype"],
        found[data["shape"]],
        found[data["strides"]],
        found[data["elem_offset"]],
        getattr(handle, "scope", "") or "global",
        _location(data, found),
    )


@_reader("tirx.BufferLoad")
def _load(data: Any, found: list[Any]) -> ir.BufferLoad:
    return ir.BufferLoad(
        data["dtype"], found[data["buffer"]], found[data["indices"]], found[data["predicate"]]
    )


@_reader("tirx.Call")
def _call(data: Any, found: list[Any]) -> ir.Call | ir.Region:
    op, args = str(found[data["op"]]), found[data["args"]]
    if op in _REGIONS and isinstance(args[0], ir.BufferLoad):
        mode = args[1].value
        load = args[0]
        return ir.Region(
            "handle", load.buffer, load.indices, tuple(args[2:]), bool(mode & 1), bool(mode & 2)
        )
    return ir.Call(data["dtype"], op, args, found[data["annotations"]] or {})


@_reader("tirx.CommReducer")
def _reducer(data: Any, found: list[Any]) -> ir.CommReducer:
    return ir.CommReducer(type(found[data["result"]][0]))


# Statements -------------------------------------------------------------------------------


@_reader("tirx.SeqStmt")
def _seq(data: Any, found: list[Any]) -> ir.SeqStmt:
    return ir.SeqStmt(_location(data, found), found[data["seq"]])


@_reader("tirx.Bind")
def _bind(data: Any, found: list[Any]) -> ir.Bind:
    return ir.Bind(_location(data, found), found[data["var"]], found[data["value"]])


@_reader("tirx.IterVar")
def _iter_var(data: Any, found: list[Any]) -> str:
    return str(found[data["thread_tag"]])


@_reader("tirx.For")
def _for(data: Any, found: list[Any]) -> ir.For:
    return ir.For(
        _location(data, found),
        found[data["loop_var"]],
        found[data["min"]],
        found[data["extent"]],
        int(data["kind"]),
        found[data["body"]],
        found[data["step"]],
        found[data["thread_binding"]] or "",
        found[data["annotations"]] or {},
    )


@_reader("tirx.While")
def _while(data: Any, found: list[Any]) -> ir.While:
    return ir.While(_location(data, found), found[data["condition"]], found[data["body"]])


@_reader("tirx.IfThenElse")
def _if(data: Any, found: list[Any]) -> ir.IfThenElse:
    parts = (found[data[part]] for part in ("condition", "then_case", "else_case"))
    return ir.IfThenElse(_location(data, found), *parts)


@_reader("tirx.AttrStmt")
def _attr(data: Any, found: list[Any]) -> ir.AttrStmt:
    return ir.AttrStmt(
        _location(data, found),
        found[data["node"]],
        str(found[data["attr_key"]]),
        found[data["value"]],
        found[data["body"]],
    )


@_reader("tirx.AssertStmt")
def _assert(data: Any, found: list[Any]) -> ir.Stmt:
    return ir.AssertStmt(_location(data, found), found[data["condition"]])


@_reader("tirx.Evaluate")
def _evaluate(data: Any, found: list[Any]) -> ir.Evaluate:
    return ir.Evaluate(_location(data, found), found[data["value"]])


@_reader("tirx.BufferStore")
def _store(data: Any, found: list[Any]) -> ir.BufferStore:
    return ir.BufferStore(
        _location(data, found),
        found[data["buffer"]],
        found[data["value"]],
        found[data["indices"]],
        found[data["predicate"]],
    )


@_reader("tirx.SBlock")
def _block(data: Any, found: list[Any]) -> ir.Block:
    return ir.Block(
        _location(data, found),
        found[data["alloc_buffers"]],
        found[data["annotations"]] or {},
        found[data["body"]],
    )


@_reader("tirx.SBlockRealize")
def _realize(data: Any, found: list[Any]) -> ir.Block:
    block: ir.Block = found[data["block"]]
    return block


@_reader("tirx.PrimFunc")
def _prim_func(data: Any, found: list[Any]) -> ir.Kernel:
    attributes = found[data["attrs"]] or {}
    return ir.Kernel(
        str(attributes.get("global_symbol", "kernel")),
        found[data["params"]],
        found[data["buffer_map"]],
        found[data["body"]],
    )
