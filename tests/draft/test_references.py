"""How a reference is called: methods of classes, sizes and constants that callers passed."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tlmatrix import run_specs
from tlmatrix.draft.calls import Call, Comparison, Seen
from tlmatrix.draft.recorder import _Open
from tlmatrix.draft.references import (
    Found,
    _compared,
    find_references,
    named_reference,
    parameters_of,
    reference_of,
)
from tlmatrix.draft.slices import Slicer
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.text import constant
from tlmatrix.spec.expr.expression import Expression

MODULE = """
class Case:
    def __init__(self, cols, dtype="float16", shape=()):
        self.cols, self.dtype, self.shape = cols, dtype, shape

    def expected(self, x, keep=False):
        return x * self.cols, self.dtype, self.shape, keep

    def many(self, *inputs):
        return inputs

    @staticmethod
    def plain(x):
        return x

def scaled(x):
    return x * 3

def scaled_ref(x, factor):
    return x * factor

def plain(x):
    return x

def doubled(x):
    return x * 2
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "cases_of_references.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "cases_of_references"


def test_a_method_is_called_on_a_new_object_with_the_dtype_of_its_input(module):
    construct = {"cols": 3, "dtype": "float16", "shape": [3, 4]}
    found = named_reference(f"{module}:Case.expected", construct)
    x = torch.ones(2, dtype=torch.float64)
    y, dtype, shape, keep = found.function(x=x, cols=5, shape=[5, 4])
    assert (y == 5).all()
    assert (dtype, shape, keep) == (torch.float64, [5, 4], False)
    assert found.method == f"{module}:Case.expected"
    assert found.target.endswith("Case_expected:reference")
    assert named_reference(f"{module}:Case.plain").function(7) == 7


@pytest.mark.parametrize(
    ("name", "construct"),
    [
        ("Case.expected", {"cols": {"kind": "function"}}),
        ("Case.many", {"cols": 3}),
        ("Case.missing", {}),
        ("Missing.expected", {}),
    ],
)
def test_a_method_that_a_spec_cannot_call_is_no_reference(name, construct, module):
    assert named_reference(f"{module}:{name}", construct) is None


def test_what_makes_the_inputs_of_a_test_is_no_reference(module):
    compared = [
        Comparison(
            "0", f"{module}:Case.{name}", passed, {"cols": 3, "dtype": "float16", "shape": []}
        )
        for name, passed in (("expected", {"cols": 5, "shape": []}), ("plain", {"x": "$x"}))
    ]
    seen = Seen((2,), "float32")
    call = Call("m:f", {"x": seen}, {"0": seen}, compared=tuple(compared))
    found = [each.method or each.target for each in _compared(SimpleNamespace(text="m:f"), [call])]
    assert found == [f"{module}:Case.plain"]


def called(function, passed, **symbols):
    found = Found("m:f", function, passed)
    numbers = {name: f"sum({name})" for name in symbols if name.startswith("packed")}
    made = reference_of(
        found,
        tensors=["x"],
        axes=["rows"],
        numbers=numbers,
        symbols=symbols,
        arguments={"window": (None, 64, 128)},
        updated={},
    )
    return dict(made.call or ()), made.missing


def test_numbers_that_are_sizes_in_all_calls_follow_them():
    def function(values, n, shape, half, mode, flag, eps, limits, other=None):
        """Any reference."""

    passed = {
        "values": ["$x", "$x", "$x"],
        "n": [32, ..., 64],
        "shape": [[7, 32], ..., [9, 64]],
        "half": [6, 6, 6],
        "mode": ["mean", "mean", "mean"],
        "flag": [True, True, True],
        "eps": [0.5, 0.5, 0.5],
        "limits": [[0.0, math.inf]] * 3,
        "other": [None, None, None],
    }
    call, missing = called(function, passed, rows=(7, 8, 9), cols=(32, 48, 64))
    assert missing == ()
    assert call == {
        "values": "x",
        "n": "cols",
        "shape": "[rows, cols]",
        "half": 6,
        "mode": "'mean'",
        "flag": True,
        "eps": 0.5,
        "limits": "[0.0, 1e999]",
        "other": "none",
    }
    assert called(lambda x, n: x, {"n": [5, 6]}, packed=(5, 6))[0]["n"] == "sum(packed)"


def test_a_value_that_varies_over_the_calls_follows_an_argument():
    passed = {"limit": [None, ..., 128], "other": [1, 2, 3]}
    assert called(lambda x, limit, other: x, passed, rows=(7, 8, 9)) == (
        {"x": "x", "limit": "window"},
        ("other",),
    )


def test_a_number_that_is_a_part_of_a_size_in_all_calls_follows_it():
    assert (
        called(lambda x, n: x, {"n": [32, 48]}, rows=(7, 7), cols=(64, 96))[0]["n"] == "cols // 2"
    )
    assert called(lambda x, n: x, {"n": [32]}, rows=(7,), cols=(64,))[0]["n"] == "cols // 2"
    passed = {"n": [32, ..., 48]}  # of the second call another function was called
    assert called(lambda x, n: x, passed, rows=(7, 7, 7), cols=(64, 8, 96))[0]["n"] == "cols // 2"
    assert called(lambda x, n: x, {"n": [21]}, rows=(7,), cols=(64,))[0]["n"] == 21
    assert called(lambda x, n: x, {"n": [32]}, a=(32,), b=(32,), cols=(64,))[0]["n"] == 32


def test_the_scale_of_attention_follows_the_size_of_heads():
    passed = {"scale": [64**-0.5], "eps": [0.25], "one": [1.0]}
    call, _ = called(lambda x, scale, eps, one: x, passed, rows=(64,), dim=(64,), h=(16,), k=(16,))
    assert call == {"x": "x", "scale": "dim ** -0.5", "eps": 0.25, "one": 1.0}


def test_of_two_sizes_a_number_is_that_of_its_name():
    passed = {"N": [1024], "k": [1024]}
    call, _ = called(lambda x, N, k: x, passed, M=(1024,), n=(1024,))
    assert call == {"x": "x", "N": "n", "k": 1024}


def test_a_small_number_is_a_size_if_it_has_its_name():
    call, _ = called(lambda x, B, n: x, {"B": [2], "n": [2]}, batch=(2,), rows=(2,))
    assert call == {"x": "x", "B": "batch", "n": 2}


def test_a_tile_of_one_size_is_a_constant():
    call, _ = called(lambda x, BLOCK, dim: x, {"BLOCK": [64], "dim": [64]}, rows=(9,), d=(64,))
    assert call == {"x": "x", "BLOCK": 64, "dim": "d"}
    call, _ = called(lambda x, BLOCK: x, {"BLOCK": [64, 32]}, rows=(9, 9), d=(64, 32))
    assert call == {"x": "x", "BLOCK": "d"}


def test_of_two_equal_numbers_the_second_is_another_size_if_there_is_one():
    call, _ = called(lambda x, m, n: x, {"m": [128], "n": [128]}, rows=(128,), cols=(256,))
    assert call == {"x": "x", "m": "rows", "n": "cols // 2"}
    call, _ = called(lambda x, m, n: x, {"m": [128], "n": [128]}, rows=(128,), cols=(77,))
    assert call == {"x": "x", "m": "rows", "n": "rows"}


def test_a_small_constant_or_a_number_of_two_sizes_is_no_size():
    call, missing = called(
        lambda x, n, k, dtype: x, {"n": [2], "k": [8], "dtype": ["float16"]}, a=(2,), b=(8,), c=(8,)
    )
    assert call == {"x": "x", "n": 2, "k": 8}
    assert missing == ("dtype",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors would be on the GPU")
def test_a_reference_may_make_tensors_on_cuda(tmp_path):
    path = tmp_path / "on_cuda.py"
    path.write_text(
        "import torch\n\ndef op(x):\n    return x + 1\n\n"
        "def reference(x):\n    return x + torch.ones(1, device='cuda')\n"
    )
    (tmp_path / "s.yaml").write_text(
        "name: on_cuda\nproblem:\n  inputs: {x: {shape: [n], dtype: float32}}\n  outputs: [y]\n"
        "  reference: on_cuda:reference\nentry: on_cuda:op\naxes: {n: [3]}\n"
    )
    (result,) = run_specs(tmp_path / "s.yaml", backend="interpreter")
    assert str(result.status) == "passed", result.findings


def test_a_number_too_large_for_a_float_is_infinity():
    assert Expression(constant(-math.inf)).evaluate({}) == -math.inf


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float32, torch.bool, torch.complex64])
def test_arguments_with_other_bytes_after_a_call_are_changed(dtype):
    x, y = torch.ones(2, 3).to(dtype), torch.ones(2, 3).to(dtype)
    opened = _Open(
        _Open.changed.__code__, {"x": x, "y": y, "nan": torch.full((2,), math.nan)}, clone=True
    )
    x.copy_(torch.zeros(2, 3).to(dtype))
    assert opened.changed() == {"x"}


def test_a_function_is_one_reference_however_it_is_found(module, monkeypatch):
    """The only one that is compared agrees in a part alone, and has the name of a reference."""
    target = target_of("cases_of_references:scaled")
    compared = (Comparison("0", "cases_of_references:scaled_ref", {"x": "$x", "factor": 3}),)
    call = Call(target.text, {"x": Seen((4,), "float32")}, {}, compared=compared)
    (found,) = find_references(
        target, [replace(call, compared=(replace(*compared, guessed=True),))]
    )
    assert found.passed["factor"] == [3]
    assert not found.part


def test_what_is_compared_itself_is_tried_before_what_is_computed_of_it(module):
    target = target_of("cases_of_references:scaled")
    one, other = (
        Comparison("0", f"cases_of_references:{name}", {"x": "$x"}) for name in ("doubled", "plain")
    )
    call = Call(target.text, {"x": Seen((4,), "float32")}, {}, compared=(one, other))
    found = [each.target for each in _compared(target, [replace(call, compared=(one, other))])]
    guessed = (replace(one, guessed=True), other)
    changed = [each.target for each in _compared(target, [replace(call, compared=guessed)])]
    assert found == changed[::-1]


def test_a_dtype_around_a_local_function_is_that_of_its_tensor():
    """The reference is called in float64."""
    kind, name, factor = torch.float16, "float16", 3

    def expected(ids, data):
        frames.append(sys._getframe())
        return (data * factor).to(kind).to(getattr(torch, name))

    frames: list = []
    expected(torch.arange(4), torch.ones(4, dtype=torch.float16))
    found = Slicer(lambda _: True, lambda _: __name__).local_function(frames[0])
    assert found.arguments == {"factor": 3, "frames": frames}
    namespace: dict = {}
    exec(found.source.replace("frames.append", "str"), namespace)
    made = namespace["reference"](None, torch.ones(4, dtype=torch.float64), 3, [])
    assert made.dtype == torch.float64


@pytest.mark.parametrize(
    ("function", "needed", "optional"),
    [
        (torch.isfinite, {"input"}, set()),
        (torch.abs, {"input"}, {"out"}),
        (torch.bitwise_or, {"input", "other"}, {"out"}),
        (torch.prod, {"input"}, {"dim", "keepdim", "dtype"}),
        (torch.logsumexp, {"input", "dim"}, {"keepdim", "out"}),
        (torch.pow, {"input", "exponent"}, {"out"}),
        (torch.nn.functional.conv1d, {"input", "weight"}, {"bias", "stride"}),
    ],
)
def test_builtins_of_pytorch_have_the_parameters_of_their_documents(function, needed, optional):
    found = parameters_of(function)
    assert {name for name, each in found.items() if each.default is each.empty} == needed
    assert optional <= {*found}
