"""Axes of drafts."""

import pytest

from tlmatrix.draft.axes import AxesOfDraft, sizes
from tlmatrix.draft.calls import Seen
from tlmatrix.draft.interface import Argument, Interface, Tensor
from tlmatrix.draft.roles import Recognition
from tlmatrix.draft.uses import Uses


def test_some_cases_have_one_size_that_takes_many_tiles_or_was_called_with():
    """A loop that adds up wrong from its third tile on is right for all sizes near one tile."""
    seen = tuple(Seen((rows, cols), "float32") for rows, cols in ((3, 1024), (4, 576)))
    x = Tensor("x", "float32", ("rows", "cols"), seen=seen)
    interface = Interface(
        factory=False, parameters=(x,), results=(), calls=2,
        symbols={"rows": (3, 4), "cols": (1024, 576)}, uses=Uses(tiles=frozenset({("x", 0, 32)})),
    )  # fmt: skip
    found = AxesOfDraft(interface, Recognition(), [x], {}, {"x"})
    ranges = found.fuzz()["axes"]
    assert ranges["rows"] == {"range": f"1..{max(found.axes['rows']) * 3 // 2 + 1}", "alone": 256}
    assert ranges["cols"]["alone"] == 1024


@pytest.mark.parametrize(
    ("takes", "compared", "values"),
    [
        ({"x"}, [False, True], (1.0,)),
        ({"x", "scale"}, [False, True], (3.0, 1.0)),
        ({"x"}, [], (3.0, 1.0)),
    ],
)
def test_an_option_that_a_reference_does_not_take_is_as_in_compared_calls(takes, compared, values):
    x = Tensor("x", "float32", ("rows",), seen=(Seen((3,), "float32"), Seen((4,), "float32")))
    scale = Argument("scale", "other", 3.0, default=False, values=(3.0, 1.0))
    interface = Interface(
        factory=False, parameters=(x,), results=(), arguments=(scale,),
        symbols={"rows": (3, 4)}, calls=2,
    )  # fmt: skip
    found = AxesOfDraft(interface, Recognition(), [x], {}, takes, compared)
    assert found.axes["scale"] == values


def test_of_a_large_batch_a_case_takes_few():
    assert sizes("batch", tile=None, recorded=[132]) == [1, 3]
    assert sizes("rows", tile=None, recorded=[132]) == [1, 132, 133]


def test_of_a_batch_in_tiles_a_case_takes_several_blocks():
    assert sizes("batch_size", tile=128, recorded=[150]) == [1, 127, 128, 129, 257]
