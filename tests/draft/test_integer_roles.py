"""`tlmatrix new`: recognition of tensors and numbers by values, shapes and names."""

import pytest
import torch

from tlmatrix.draft.calls import Call, Seen, seen_tensor
from tlmatrix.draft.interface import Argument, Interface, Tensor
from tlmatrix.draft.roles import Role, recognize, substitute
from tlmatrix.draft.sources import drafts_of_calls
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.uses import Selection, Uses


def _call(*tensors, arguments=(), sizes=(), selections=()):
    used = Uses(selections=frozenset(selections))
    return Interface(
        factory=False, parameters=tensors, results=(), arguments=tuple(arguments),
        symbols={name: (size,) for name, size in sizes}, uses=used, calls=1,
    )  # fmt: skip


def _tensor(name, shape, sizes, dtype="float16", values=None):
    return Tensor(name, dtype, shape, seen=(Seen(sizes, dtype, values=values),))


def _rows(name, symbol, size):
    return _tensor(name, (symbol, "dim"), (size, 40))


def _vector(name, shape, values):
    return _tensor(name, (shape,), (len(values),), "int32", tuple(values))


def test_a_vector_from_0_that_ends_at_a_dimension_is_offsets():
    found = recognize(
        _call(
            _rows("x", "total", 24),
            _vector("cu", "bounds", [0, 5, 5, 24]),
            arguments=[
                Argument("max_len", "size", 19, default=False, values=(19,)),
                Argument("batch", "size", 3, default=False, values=(3,)),
                Argument("n", "size", 24, default=False, values=(24,)),
                Argument("window", "size", 7, default=False, values=(7,)),
            ],
            sizes=[("total", 24), ("bounds", 4), ("dim", 40), ("batch", 3)],
        )
    )
    assert found.roles == {"cu": Role("offsets_of", "seqlens")}
    assert found.dims == {
        "total": "sum(seqlens)",
        "bounds": "len(seqlens) + 1",
        "batch": "len(seqlens)",
    }
    assert found.numbers == {
        "max_len": "max(seqlens)",
        "batch": "len(seqlens)",
        "n": "sum(seqlens)",
    }


@pytest.mark.parametrize("values", [[0, 5, 4, 24], [1, 5, 24], [0, 5, 25], [0]])
def test_a_vector_that_decreases_or_ends_elsewhere_is_not_offsets(values):
    found = recognize(_call(_rows("x", "total", 24), _vector("cu", "n", values)))
    assert found.packings == ()
    assert all(role.key == "between" for role in found.roles.values())


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
            _tensor("pool", ("pages", "page", "dim"), (9, 16, 40)),
            _tensor("table", ("batch", "columns"), (2, 2), "int32", (4, 1, 0, -1)),
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
    target = _tensor("target", ("rows",), (3,), "int64", (-100, 0, 7))
    logits = _tensor("logits", ("rows", "vocab"), (3, 8), "float32")
    chosen = [Selection("target", "logits", 1, "index")]
    found = recognize(_call(logits, target, selections=chosen))
    assert found.roles == {"target": Role("between", ("-1", "vocab - 1"))}


@pytest.mark.parametrize(
    ("largest", "role"),
    [(5, Role("between", ("0", "num_experts - 1"))), (8, Role("between", ("0", "rows - 1")))],
)
def test_indices_are_limited_to_a_count_that_callers_pass(largest, role):
    ids = _tensor("ids", ("tokens", "top"), (3, 2), "int32", (0, largest, 2, 1, 1, 0))
    counts = [
        Argument("num_experts", "size", 6, default=False, values=(6,)),
        Argument("block", "size", 6, default=False, values=(6,)),
    ]
    found = recognize(_call(_rows("x", "rows", 24), ids, arguments=counts))
    assert found.roles == {"ids": role}


def test_of_a_large_tensor_the_limits_tell_what_it_indexes():
    """Its own dimension, if it fits no other; -1 is padding."""
    seen = (Seen((200, 64), "int32", limits=(-1, 199)),)
    ids = Tensor("ids", "int32", ("rows", "top"), seen=seen)
    found = recognize(_call(_rows("x", "rows", 200), ids))
    assert found.roles == {"ids": Role("between", ("-1", "rows - 1"))}
    noted = seen_tensor(torch.arange(-1, 5000).reshape(-1, 1))
    assert (noted.values, noted.limits) == (None, (-1, 4999))


def test_a_vector_without_elements_says_nothing():
    chosen = [Selection("ids", "x", 0, "start")]
    empty = _vector("ids", "n", [])
    lengths = _vector("lengths", "n", [])
    assert not recognize(_call(_rows("x", "rows", 24), empty, lengths, selections=chosen)).packings


def test_zeros_may_index_anything_and_say_nothing():
    indices = _tensor("ids", ("rows", "top_k"), (5, 2), "int32", (0,) * 10)
    sizes = [("rows", 5), ("top_k", 2), ("dim", 40)]
    assert not recognize(_call(_rows("x", "rows", 5), indices, sizes=sizes)).roles
    known = [Selection("ids", "x", 0, "index")]
    found = recognize(_call(_rows("x", "rows", 5), indices, sizes=sizes, selections=known))
    assert found.roles == {"ids": Role("between", ("0", "rows - 1"))}


def test_a_size_of_a_tile_is_no_number_of_heads():
    q = _tensor("q", ("heads", "dim"), (32, 40))
    block = Argument("block_size", "tile", 32, default=False, values=(32,))
    sizes = [("heads", 32), ("dim", 40)]
    assert recognize(_call(q, arguments=[block], sizes=sizes)).numbers == {}
    rows = _tensor("q", ("rows", "dim"), (32, 40))
    tied = recognize(_call(rows, arguments=[block], sizes=[("rows", 32), ("dim", 40)]))
    assert tied.numbers == {"block_size": "rows"}
    # Not one by which another size is divided.
    parts = _tensor("means", ("other // 32", "dim"), (8, 40))
    sizes = [("rows", 32), ("dim", 40), ("other", 256)]
    assert recognize(_call(rows, parts, arguments=[block], sizes=sizes)).numbers == {}


def test_an_expression_replaces_a_symbol():
    dims = {"total": "sum(seqlens)", "bounds": "len(seqlens) + 1"}
    assert substitute("total", dims) == "sum(seqlens)"
    assert substitute("2 * total", dims) == "2 * sum(seqlens)"
    assert substitute("bounds - 1", dims) == "len(seqlens)"
    assert substitute(7, dims) == 7


def test_starts_and_ends_of_ranges_do_not_cross():
    found = recognize(
        _call(
            _rows("x", "n", 60),
            _rows("q", "m", 40),
            _vector("first", "m", [0, 7, 45, 12] * 10),
            _vector("last", "m", [9, 7, 60, 13] * 10),
            sizes=[("n", 60), ("m", 40), ("dim", 40)],
        )
    )
    assert found.roles == {
        "first": Role("between", ("0", "n // 2")),
        "last": Role("between", ("n // 2", "n")),
    }


def test_starts_of_padded_lengths_are_known_by_a_tile_that_callers_pass():
    found = recognize(
        _call(
            _rows("x", "total", 27),
            _vector("sizes", "groups", [5, 9, 13]),
            _vector("starts", "groups", [0, 5, 14]),
            _vector("padded", "groups", [0, 64, 128]),
            arguments=[Argument("block_M", "tile", 64, default=False, values=(64,))],
            sizes=[("total", 27), ("groups", 3), ("dim", 40)],
        )
    )
    assert found.roles == {
        "sizes": Role("lengths_of", "seqlens"),
        "starts": Role("starts_of", "seqlens"),
        "padded": Role("starts_of", "ceildiv(seqlens, 64) * 64"),
    }


@pytest.mark.parametrize(
    ("most", "text"), [(13, "max(seqlens)"), (128, "ceildiv(max(seqlens), 128) * 128")]
)
def test_a_size_of_the_longest_sequence_may_be_padded(most, text):
    found = recognize(
        _call(
            _rows("x", "total", 27),
            _vector("sizes", "groups", [5, 9, 13]),
            arguments=[Argument("M_max", "size", most, default=False, values=(most,))],
            sizes=[("total", 27), ("groups", 3), ("dim", 40), ("M_max", most)],
        )
    )
    assert found.numbers == {"M_max": text}
    assert found.dims["M_max"] == text


def test_a_dimension_beside_packed_rows_that_has_their_size_is_another():
    x = _tensor("x", ("total", "dim"), (24, 24))
    lengths = _vector("n", "batch", [4, 20])
    sizes = [("total", 24), ("dim", 24), ("batch", 2), ("other", 24)]
    chosen = [Selection("n", "x", 0, "start")]
    found = recognize(_call(x, lengths, sizes=sizes, selections=chosen))
    assert found.dims["total"] == found.dims["other"] == "sum(seqlens)"
    assert "dim" not in found.dims


@pytest.mark.parametrize(("most", "size"), [(7, "ceildiv(rows, 32)"), (6, "dim")])
def test_numbers_of_blocks_are_known_by_the_largest_one(most, size):
    block = Argument("block_size", "tile", 32, default=False, values=(32,))
    ids = _tensor("ids", ("batch", "chosen"), (2, 3), "int32", (0, most, 2, 3, 1, 5))
    found = recognize(_call(_rows("x", "rows", 250), ids, arguments=[block]))
    assert found.roles == {"ids": Role("between", ("0", f"{size} - 1"))}


def test_calls_of_which_values_are_unknown_tell_sizes_apart(tmp_path, monkeypatch):
    """Here the others have as many rows as columns."""
    (tmp_path / "grouped.py").write_text("def grouped(x, sizes, cols=None):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(rows, cols, values, passed):
        x, sizes = Seen((rows, cols), "float16"), Seen((2,), "int32", values=values)
        arguments = {"x": x, "sizes": sizes, "cols": passed}
        return Call("grouped:grouped", arguments, {"0": Seen((rows, cols), "float16")})

    calls = [call(64, 64, (40, 24), None), call(48, 40, None, 40), call(64, 64, (1, 63), 64)]
    draft = drafts_of_calls(target_of("grouped:grouped"), calls)()
    assert draft.inputs["sizes"] == {"lengths_of": "seqlens"}
    assert draft.inputs["x"]["shape"] == ["sum(seqlens)", "cols"]


@pytest.mark.parametrize(
    ("values", "number"), [((40, None, 64), "n"), ((40, None, None), None), ((None, 40, 64), None)]
)
def test_a_size_that_some_calls_leave_out_is_known_by_the_others(values, number):
    x = Tensor("x", "float16", ("n",), seen=tuple(Seen((n,), "float16") for n in (40, 48, 64)))
    passed = Argument("total", "size", values[0], default=False, values=values)
    found = recognize(
        Interface(
            factory=False,
            parameters=(x,),
            results=(),
            arguments=(passed,),
            symbols={"n": (40, 48, 64)},
            calls=3,
        )
    )
    assert found.numbers.get("total") == number
