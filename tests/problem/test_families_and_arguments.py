"""Finding a family by name, and changing arguments of a problem."""

import sys

import pytest
import torch
from problem_cases import make_problem, make_spec, packed

from tlmatrix.problem import family_for, with_changed_arguments
from tlmatrix.spec import load_spec
from tlmatrix.spec.issues import SpecError


@pytest.mark.parametrize("name", ["attention", "gemm"])
def test_built_in_families_implement_the_protocol(name):
    family = family_for(make_spec(name))
    assert all(callable(getattr(family, part)) for part in ("lint", "compile_key", "problem"))


def test_unknown_family_suggests_the_nearest():
    with pytest.raises(SpecError, match="unknown problem 'atention'; did you mean 'attention'"):
        family_for(make_spec("atention"))


FAMILY = """\
class Mine:
    def lint(self, spec): return []
    def compile_key(self, spec, values): return ""
    def problem(self, spec, values, *, seed, device): return None

class Half:
    def lint(self, spec): return []

class Broken:
    def __init__(self): raise OSError("no luck")

constant = 3
"""


@pytest.fixture
def users_spec(tmp_path):
    (tmp_path / "users_own_family.py").write_text(FAMILY)

    def make(problem):
        path = tmp_path / "spec.yaml"
        path.write_text(f"name: mine\nproblem: {problem}\nentry: a:b\naxes: {{x: [1]}}\n")
        return load_spec(path)

    yield make
    sys.modules.pop("users_own_family", None)


def test_users_family_is_imported_from_the_folder_of_the_spec(users_spec):
    assert type(family_for(users_spec("users_own_family:Mine"))).__name__ == "Mine"


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("users_own_family:Mien", "has no 'Mien'; did you mean 'Mine'?"),
        ("users_own_family:Half", "has no method compile_key; a family has lint"),
        ("users_own_family:Broken", "() raised OSError: no luck"),
        ("users_own_family:constant", "is not a class"),
        ("no_such_family:Mine", "no module 'no_such_family'; looked in"),
    ],
)
def test_unusable_family_is_an_error_at_problem(users_spec, problem, words):
    with pytest.raises(SpecError) as caught:
        family_for(users_spec(problem))
    (issue,) = caught.value.issues
    assert words in issue.message
    assert (issue.line, issue.column) == (2, 10)


TABLED = """\
from dataclasses import dataclass

from tlmatrix.problem.family import BuiltInFamily
from tlmatrix.problem.names import Names, whole


@dataclass
class Setting:
    rows: int

    def names(self):
        return {"rows": self.rows}


class Mine(BuiltInFamily):
    table = Names("mine", axes={"rows": whole(1)}, inputs=frozenset({"x"}))
    required, data_axes, kept = {"rows": "[8]"}, frozenset(), ()

    def setting(self, values):
        self.table.refuse_invalid(values)
        return Setting(values["rows"])

    def build(self, setup, setting):
        return setting
"""


def test_a_family_from_outside_with_a_table_of_names(users_spec, tmp_path):
    (tmp_path / "users_own_family.py").write_text(TABLED)
    spec = users_spec("users_own_family:Mine")
    family = family_for(spec)
    assert (family.axes, family.tensors) == ({"rows"}, ("x",))
    (issue,) = family.lint(spec)
    assert issue.message == "mine needs the axis rows; add rows: [8]"
    assert family.problem(spec, {"rows": 3}, seed=1, device=None).names() == {"rows": 3}
    with pytest.raises(ValueError, match="rows: 0 is not an integer >= 1"):
        family.problem(spec, {"rows": 0}, seed=1, device=None)


def test_two_family_modules_with_one_name_are_an_error(users_spec, tmp_path):
    family_for(users_spec("users_own_family:Mine"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "users_own_family.py").write_text(FAMILY)
    (elsewhere / "spec.yaml").write_text((tmp_path / "spec.yaml").read_text())
    with pytest.raises(SpecError, match="already loaded from"):
        family_for(load_spec(elsewhere / "spec.yaml"))


PROBLEM = packed([4, 3], values="normal")


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({"groups": 0}, "groups", 0),
        ({"scale": None}, "scale", None),
        ({"q": None}, "q", None),
        ({"seqlens_q": [1, 2]}, "seqlens_q", [1, 2]),
    ],
)
def test_scalar_replaces_an_argument(changes, name, expected):
    changed = with_changed_arguments(make_problem(PROBLEM), changes)
    assert changed.names[name] == expected
    assert name not in changed.inputs


def test_replaced_tensor_has_no_gradient():
    problem = make_problem(PROBLEM)
    changed = with_changed_arguments(problem, {"v": 1.0})
    assert dict(problem.gradient_of) == dict(changed.gradient_of) | {"dv": "v"}
    assert "dv" not in changed.gradient_of


def test_list_becomes_a_tensor_of_the_same_dtype():
    changed = with_changed_arguments(make_problem(PROBLEM), {"cu_seqlens_q": [0, 5, 3]})
    tensor = changed.names["cu_seqlens_q"]
    assert tensor.tolist() == [0, 5, 3]
    assert tensor.dtype == torch.int32
    assert changed.inputs["cu_seqlens_q"] is tensor


@pytest.mark.parametrize("change", [{"k": {"dtype": "float32"}}, {"k.dtype": "float32"}])
def test_dtype_can_be_changed_in_both_notations(change):
    problem = make_problem(PROBLEM)
    changed = with_changed_arguments(problem, change)
    assert changed.names["k"].dtype == changed.inputs["k"].dtype == torch.float32
    assert problem.names["k"].dtype == torch.float16
    assert torch.equal(changed.names["k"].half(), problem.names["k"])


def test_shape_and_device_can_be_changed():
    changed = with_changed_arguments(
        make_problem(PROBLEM), {"q": {"shape": [3, 4]}, "v.device": "meta"}
    )
    assert changed.names["q"].shape == (3, 4)
    assert changed.names["q"].dtype == torch.float16
    assert changed.names["v"].device.type == "meta"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cu_seqlen_q": [0]}, "no argument 'cu_seqlen_q'; did you mean 'cu_seqlens_q'"),
        ({"k.dtyp": "float32"}, "cannot change 'dtyp'; did you mean 'dtype'"),
        ({"k.dtype": "float23"}, "unknown dtype 'float23'; did you mean 'float32'"),
        ({"k.shape": [-1]}, "not a list of sizes"),
    ],
)
def test_invalid_changes_are_errors(changes, words):
    with pytest.raises(ValueError, match=words):
        with_changed_arguments(make_problem(PROBLEM), changes)
