"""Lowered code as older releases of TileLang save it: in another namespace, and nested."""

import json

from tlmatrix.interpreter.ir import nodes as ir
from tlmatrix.interpreter.ir.read import read_all


def saved(*nodes):
    """The JSON of a graph whose root is the last node."""
    graph = [{"type": "None"}, *({"type": kind, "data": data} for kind, data in nodes)]
    return json.dumps({"root_index": len(nodes), "nodes": graph})


def test_what_follows_a_statement_is_nested_in_it():
    text = saved(
        ("ffi.String", "x"),  # 1
        ("tir.Var", {"span": 0, "dtype": "int32", "name": 1, "type_annotation": 0}),
        ("ir.IntImm", {"span": 0, "dtype": "int32", "value": 3}),
        ("tir.EQ", {"span": 0, "dtype": "bool", "a": 2, "b": 3}),
        ("ir.Op", "tir.bitwise_and"),  # 5
        ("ffi.Array", [2, 3]),
        ("tir.Call", {"span": 0, "dtype": "int32", "op": 5, "args": 6}),
        ("tir.Evaluate", {"span": 0, "value": 7}),
        ("tir.AssertStmt", {"span": 0, "condition": 4, "body": 8}),
        ("tir.LetStmt", {"span": 0, "var": 2, "value": 3, "body": 9}),
    )
    bound, (assertion, evaluated) = read_all(text).seq[0], read_all(text).seq[1].seq
    assert (bound.var.name, bound.value.value) == ("x", 3)
    assert isinstance(assertion.condition, ir.Compare)
    assert evaluated.value.op == "tirx.bitwise_and"


def test_memory_is_allocated_for_what_follows():
    text = saved(
        ("ffi.String", "part"),
        ("ffi.String", "shared"),
        ("ir.PointerType", {"element_type": 0, "storage_scope": 2}),
        ("tir.Var", {"span": 0, "dtype": "handle", "name": 1, "type_annotation": 3}),
        ("ir.IntImm", {"span": 0, "dtype": "int32", "value": 64}),  # 5
        ("ffi.Array", [5]),
        ("tir.Evaluate", {"span": 0, "value": 5}),
        ("tir.Allocate", {"span": 0, "buffer_var": 4, "dtype": "float32", "extents": 6, "body": 7}),
    )
    allocated, body = read_all(text).seq
    assert (allocated.buffer.scope, allocated.buffer.dtype) == ("shared", "float32")
    assert isinstance(body, ir.Evaluate)
