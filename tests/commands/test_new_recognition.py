"""`tlmatrix new`: recognition of tensors and numbers by values, shapes and names."""

import pytest

from tlmatrix.commands.new.accesses import Accesses, Selection
from tlmatrix.commands.new.interface import Argument, Interface, Tensor
from tlmatrix.commands.new.recognition import Role, recognize, substitute


def _call(*tensors, arguments=(), sizes=(), selections=()):
    used = Accesses(selections=frozenset(selections))
    return Interface(
        "m:op", factory=False, parameters=tensors, results=(), arguments=tuple(arguments),
        sizes=tuple(sizes), accesses=used,
    )  # fmt: skip


def _rows(name, symbol, size):
    return Tensor(name, "float16", (symbol, "dim"), sizes=(size, 40))


def _vector(name, shape, values):
    return Tensor(name, "int32", (shape,), sizes=(len(values),), values=tuple(values))


def test_a_vector_from_0_that_ends_at_a_dimension_is_offsets():
    found = recognize(
        _call(
            _rows("x", "total", 24),
            _vector("cu", "bounds", [0, 5, 5, 24]),
            arguments=[
                Argument("max_len", "size", 19, default=False),
                Argument("batch", "size", 3, default=False),
                Argument("n", "size", 24, default=False),
                Argument("window", "size", 7, default=False),
            ],
            sizes=[("total", 24), ("bounds", 4), ("dim", 40)],
        )
    )
    assert found.roles == {"cu": Role("offsets_of", "seqlens")}
    assert found.dims == {"total": "sum(seqlens)", "bounds": "len(seqlens) + 1"}
    assert found.numbers == {
        "max_len": "max(seqlens)",
        "batch": "len(seqlens)",
        "n": "sum(seqlens)",
    }


@pytest.mark.parametrize("values", [[0, 5, 4, 24], [1, 5, 24], [0, 5, 25], [0]])
def test_a_vector_that_decreases_or_ends_elsewhere_is_not_offsets(values):
    found = recognize(_call(_rows("x", "total", 24), _vector("cu", "n", values)))
    assert found.packings == ()
    assert found.roles == {}


def test_two_offset_vectors_of_one_length_are_two_sides_of_an_axis():
    found = recognize(
        _call(
            _rows("q", "nq", 24),
            _rows("k", "nk", 30),
            _vector("cu_q", "bounds", [0, 5, 24]),
            _vector("cu_k", "bounds", [0, 1, 30]),
            sizes=[("nq", 24), ("nk", 30)],
        )
    )
    assert [packing.expression for packing in found.packings] == ["seqlens.q", "seqlens.k"]
    assert found.roles["cu_k"] == Role("offsets_of", "seqlens.k")
    assert found.dims["nk"] == "sum(seqlens.k)"


def test_lengths_ids_and_positions_are_recognized_by_their_values():
    found = recognize(
        _call(
            _rows("x", "total", 5),
            _vector("cu", "bounds", [0, 3, 5]),
            _vector("n", "batch", [3, 2]),
            _vector("whose", "total", [0, 0, 0, 1, 1]),
            _vector("place", "total", [0, 1, 2, 0, 1]),
            sizes=[("total", 5), ("bounds", 3), ("batch", 2)],
        )
    )
    assert {name: role.key for name, role in found.roles.items()} == {
        "cu": "offsets_of",
        "n": "lengths_of",
        "whose": "sequence_ids_of",
        "place": "positions_of",
    }
    assert found.dims["batch"] == "len(seqlens)"


def test_a_table_of_pages_belongs_to_the_longer_side():
    found = recognize(
        _call(
            _rows("new", "total", 4),
            Tensor("pool", "float16", ("pages", "page", "dim"), sizes=(9, 16, 40)),
            Tensor("table", "int32", ("batch", "columns"), sizes=(2, 2), values=(4, 1, 0, -1)),
            _vector("cu", "bounds", [0, 3, 4]),
            _vector("lens", "batch", [40, 9]),
            sizes=[("total", 4), ("pages", 9), ("batch", 2), ("columns", 2), ("bounds", 3)],
        )
    )
    assert found.roles == {
        "cu": Role("offsets_of", "seqlens.q"),
        "lens": Role("lengths_of", "seqlens.k"),
        "table": Role("pages_of", "seqlens.k", "page"),
    }
    assert found.dims["total"] == "sum(seqlens.q)"
    assert found.dims["pages"] == "pages(seqlens.k, page)"


def test_indices_are_limited_to_their_dimension():
    target = Tensor("target", "int64", ("rows",), sizes=(3,), values=(-100, 0, 7))
    logits = Tensor("logits", "float32", ("rows", "vocab"), sizes=(3, 8))
    chosen = [Selection("target", "logits", 1, "index")]
    found = recognize(_call(logits, target, selections=chosen))
    assert found.roles == {"target": Role("between", ("-1", "vocab - 1"))}


def test_an_expression_replaces_a_symbol():
    dims = {"total": "sum(seqlens)", "bounds": "len(seqlens) + 1"}
    assert substitute("total", dims) == "sum(seqlens)"
    assert substitute("2 * total", dims) == "2 * sum(seqlens)"
    assert substitute("bounds - 1", dims) == "len(seqlens)"
    assert substitute(7, dims) == 7
