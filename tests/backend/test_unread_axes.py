"""An axis that nothing reads is an error of `check`, found in sources and with nothing imported."""

from __future__ import annotations

import sys

import pytest

from tlmatrix.backend.axes import refuse_unknown_axes, unread_axes
from tlmatrix.backend.backends import InterpreterBackend
from tlmatrix.backend.binding import bind
from tlmatrix.backend.errors import BindingError
from tlmatrix.problem import family_for
from tlmatrix.spec import load_spec

CODE = """
import explode_when_imported
from .{name}_inner import handed_on

def plain(q, k, v, cu_seqlens_q, stages=2):
    return q

def anything(q, k, v, **options):
    return q

@torch.compile
def compiled(q, causal, stages):
    return q

@decorated
def changed(q):
    return q

class Operator:
    pass
"""
SPEC = """\
name: trial
problem: attention
entry: {entry}
axes: {{dtype: [float16], kv_heads: [1], head_dim: [8], seqlens: [[3]], {axis}: [1]}}
"""


def found(tmp_path, entry, axis, kind="entry"):
    package = tmp_path / "unread"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("from .code import *\nfrom .code import plain, anything\n")
    (package / "code.py").write_text(CODE.format(name="code"))
    (package / "code_inner.py").write_text("def handed_on(q, depth):\n    return q\n")
    path = tmp_path / "spec.yaml"
    text = SPEC.format(entry=entry, axis=axis)
    path.write_text(text if kind == "entry" else f"{text.replace('entry', kind)}call: [q]\n")
    spec = load_spec(path)
    issues = list(unread_axes(spec, family_for(spec)))
    assert "unread" not in sys.modules
    return [issue.message for issue in issues]


@pytest.mark.parametrize(
    ("entry", "axis", "words"),
    [
        ("unread:plain", "sinks", "takes the axis 'sinks'; did you mean 'sink'?"),
        ("unread.code:plain", "stage", "takes the axis 'stage'; did you mean 'stages'?"),
        ("unread.code:handed_on", "depths", "takes the axis 'depths'; did you mean 'depth'?"),
        ("unread.code:compiled", "stage", "takes the axis 'stage'; did you mean 'stages'?"),
        ("unread:anything", "sinks", "and takes this axis as any keyword; did you mean 'sink'?"),
    ],
)
def test_an_axis_that_nothing_reads_is_an_error(tmp_path, entry, axis, words):
    (message,) = found(tmp_path, entry, axis)
    assert words in message


def test_an_axis_that_a_factory_takes_must_be_passed_to_it(tmp_path):
    (message,) = found(tmp_path, "unread:plain", "stages", kind="factory")
    assert "'factory_args' takes the axis 'stages'; unread:plain takes it" in message
    assert message.endswith("factory_args: {stages: stages}")


@pytest.mark.parametrize(
    ("entry", "axis"),
    [
        ("unread:plain", "stages"),
        ("unread:plain", "sink"),
        ("unread:anything", "num_stages"),
        # What the source does not show is left to the run.
        ("unread.code:changed", "sinks"),
        ("unread.code:Operator", "sinks"),
        ("unread.code:Operator.apply", "sinks"),
        ("unread.code:nothing", "sinks"),
        ("nowhere.at_all:nothing", "sinks"),
    ],
)
def test_an_axis_that_something_reads_is_valid(tmp_path, entry, axis):
    assert found(tmp_path, entry, axis) == []


def test_binding_finds_a_misspelled_axis_of_an_entry_that_takes_any_keyword(tmp_path, monkeypatch):
    (tmp_path / "any_keyword.py").write_text("def f(q, k, v, **options):\n    return q\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.format(entry="any_keyword:f", axis="head_dims"))
    spec = load_spec(path)
    with pytest.raises(BindingError, match="'head_dims' and takes this axis as any keyword"):
        refuse_unknown_axes(bind(spec, InterpreterBackend()), family_for(spec))
    path.write_text(SPEC.format(entry="any_keyword:f", axis="pipeline"))
    spec = load_spec(path)
    refuse_unknown_axes(bind(spec, InterpreterBackend()), family_for(spec))
