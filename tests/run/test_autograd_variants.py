"""The determinism check calls differentiable entries through autograd in several ways."""

from collections import Counter

import pytest
import torch

from tlmatrix.check import determinism
from tlmatrix.check.determinism import pick_autograd_variant, pick_variant_of_ranks
from tlmatrix.matrix import Case
from tlmatrix.problem.model import AutogradVariant, Problem
from tlmatrix.run import Status
from tlmatrix.run.runner import Runner
from tlmatrix.spec import parse_spec

SPEC = """
name: scaled
problem:
  inputs:
    x: {{shape: [rows, 8], dtype: float32, grad: true}}
    w: {{shape: [rows, 8], dtype: float32, grad: true}}
  outputs: [y]
  reference: autograd_variants_code:reference
entry: autograd_variants_code:{entry}
call: [x, w]
returns: [y]
axes: {{rows: [4]}}
checks: [numeric, gradients, determinism]
"""
TWO = """
name: two
problem:
  inputs:
    x: {{shape: [rows, 8], dtype: float32, grad: true}}
    w: {{shape: [rows, 8], dtype: float32, grad: true}}
  outputs: [y, {output}]
  reference: autograd_variants_code:{reference}
entry: autograd_variants_code:{entry}
call: [x, w]
returns: [y, {output}]
axes: {{rows: [4]}}
checks: [numeric, gradients, determinism]
"""
CODE = """
import torch


def reference(x, w):
    return x * w


class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x.clone(), w.clone())
        return x * w

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w, dy * x


class AssumesStrides(Right):
    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dense = torch.as_strided(dy, dy.shape, (dy.shape[1], 1))
        return dense * w, dense * x


class RefusesStrides(Right):
    @staticmethod
    def backward(ctx, dy):
        if not dy.is_contiguous():
            raise ValueError("dy must be contiguous")
        return Right.backward(ctx, dy)


class ChangesSaved(Right):
    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = dy * w
        w.data.mul_(dy)
        return dx, dy * x


class WrongSlots(Right):
    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        needed = [g for g, n in zip((dy * w, dy * x), ctx.needs_input_grad) if n]
        return (*needed, None)[:2]


class NeedsAll(Right):
    @staticmethod
    def backward(ctx, dy):
        if not all(ctx.needs_input_grad):
            return None, None
        return Right.backward(ctx, dy)


class Saves(Right):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w


class SavesViews(Right):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x.view(x.shape), w.view(w.shape))
        return x * w


class Keeps(Right):
    @staticmethod
    def forward(ctx, x, w):
        ctx.kept = x, w
        return x * w

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.kept
        return dy * w, dy * x


saves = Saves.apply
saves_views = SavesViews.apply
keeps = Keeps.apply
right = Right.apply
assumes_strides = AssumesStrides.apply
refuses_strides = RefusesStrides.apply
changes_saved = ChangesSaved.apply
wrong_slots = WrongSlots.apply
needs_all = NeedsAll.apply


class Summed(Right):
    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w, (dy * x).sum(0)


summed = Summed.apply


def two(x, w):
    return x * w, x + w


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x.clone(), w.clone())
        ctx.set_materialize_grads(False)
        return x * w, x + w

    @staticmethod
    def backward(ctx, dy, dz):
        x, w = ctx.saved_tensors
        dy = torch.zeros_like(x) if dy is None else dy
        dz = torch.zeros_like(x) if dz is None else dz
        return dy * w + dz, dy * x + dz


class NeedsBoth(Two):
    @staticmethod
    def backward(ctx, dy, dz):
        x, w = ctx.saved_tensors
        return (None, None) if dz is None or dy is None else (dy * w + dz, dy * x + dz)


right_two = Two.apply
needs_both = NeedsBoth.apply


def with_sum(x, w):
    # The gradient of s is not that of a differentiable output.
    return x * w, (x + w).detach().sum(-1)


class Claims(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, (x + w).sum(-1)

    @staticmethod
    def backward(ctx, dy, ds):
        x, w = ctx.saved_tensors
        return dy * w, dy * x


class Marks(Claims):
    @staticmethod
    def forward(ctx, x, w):
        y, s = Claims.forward(ctx, x, w)
        ctx.mark_non_differentiable(s)
        return y, s


claims = Claims.apply
marks = Marks.apply


def wrong_in_inference(x, w):
    return Right.apply(x, w) if torch.is_grad_enabled() else x + w


def over_its_input(x, w):
    return right(x, w) if x.requires_grad else x.mul_(w)


def into_memory_of_its_own(x, w):
    return right(x, w) if x.requires_grad else torch.empty_like(x)
"""
VARIANTS = {
    "strided": AutogradVariant("strided"),
    "transposed": AutogradVariant("transposed"),
    "twice": AutogradVariant("twice"),
    "no_grad": AutogradVariant("no_grad"),
    "some": AutogradVariant("some", requires=("w",)),
    "shared": AutogradVariant("shared"),
    "expanded": AutogradVariant("expanded"),
    "changed": AutogradVariant("changed", ("w",)),
}


@pytest.fixture
def run(code_folder, monkeypatch):
    def run(entry, variant, text=SPEC, **names):
        chosen = VARIANTS.get(variant) if isinstance(variant, str) else variant
        monkeypatch.setattr(determinism, "pick_autograd_variant", lambda *_: chosen)
        spec = parse_spec(text.format(entry=entry, **names), code_folder / "scaled.yaml")
        return Runner("interpreter").run(spec, Case("scaled", {"rows": 4}))

    return run


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_finding_for_a_correct_entry(run, variant):
    assert run("right", variant).status is Status.PASSED


@pytest.mark.parametrize(
    ("entry", "variant", "tensor"),
    [
        ("assumes_strides", "strided", "dx"),
        ("assumes_strides", "transposed", "dx"),
        ("assumes_strides", "expanded", "dx"),
        ("changes_saved", "twice", "dx"),
        ("needs_all", "some", "dw"),
        ("wrong_slots", "some", "dw"),
        ("wrong_in_inference", "no_grad", "y"),
        ("keeps", "changed", "dx"),
    ],
)
def test_only_the_variant_shows_the_bug(run, entry, variant, tensor):
    assert run(entry, None).status is Status.PASSED
    result = run(entry, variant)
    assert result.status is Status.FAILED
    assert {finding.check for finding in result.findings} == {"determinism"}
    # Equal findings of several tensors are merged; the detail names the others.
    finding = result.findings[0]
    assert finding.tensor == tensor or tensor in finding.detail
    assert str(VARIANTS[variant]) in finding.hint


@pytest.mark.parametrize("entry", ["saves", "saves_views"])
def test_autograd_may_refuse_inputs_that_are_changed_before_the_backward_pass(run, entry):
    assert run(entry, "changed").status is Status.PASSED


def test_sums_of_pytorch_may_round_in_another_order(code_folder, monkeypatch):
    """torch.sum adds in an order that depends on the strides of its argument."""
    monkeypatch.setattr(determinism, "pick_autograd_variant", lambda *_: VARIANTS["transposed"])
    text = SPEC.format(entry="summed").replace("w: {shape: [rows, 8]", "w: {shape: [8]")
    spec = parse_spec(text.replace("rows: [4]", "rows: [999]"), code_folder / "scaled.yaml")
    case = Case("scaled", {"rows": 999})
    assert Runner("interpreter").run(spec, case).status is Status.PASSED
    dy = torch.randn(999, 8)
    assert not torch.equal(dy.sum(0), dy.t().contiguous().t().sum(0))


def test_a_backward_that_refuses_strides(run):
    finding = run("refuses_strides", "strided").findings[0]
    assert finding.title.startswith("with output gradients with stride 2 in their last dimension: ")
    assert "dy must be contiguous" in finding.title


@pytest.mark.parametrize("names", [("y",), ("z",)])
def test_an_absent_output_gradient(run, names):
    text, variant = (
        {"text": TWO, "reference": "two", "output": "z"},
        AutogradVariant("absent", names),
    )
    assert run("right_two", variant, **text).status is Status.PASSED
    assert run("two", variant, **text).status is Status.PASSED
    assert run("needs_both", None, **text).status is Status.PASSED
    finding = run("needs_both", variant, **text).findings[0]
    assert finding.check == "determinism"
    assert str(variant) in finding.hint


def test_an_output_that_claims_a_gradient(run):
    text, variant = (
        {"text": TWO, "reference": "with_sum", "output": "s"},
        AutogradVariant("claimed"),
    )
    assert run("marks", variant, **text).status is Status.PASSED
    assert run("claims", None, **text).status is Status.PASSED
    finding = run("claims", variant, **text).findings[0]
    assert (finding.check, finding.tensor) == ("determinism", "s")
    assert "requires grad, but its gradient is 0" in finding.title


SHARDS = "{x: &rows {dim: rows}, w: *rows, y: *rows}"


@pytest.mark.parametrize(
    ("entry", "right", "variant", "tensor"),
    [
        ("assumes_strides", "right", VARIANTS["strided"], "dx"),
        ("keeps", "saves", VARIANTS["changed"], "dx"),
        ("needs_all", "right", VARIANTS["some"], "dw"),
        ("claims", "marks", AutogradVariant("claimed"), "s"),
        ("into_memory_of_its_own", "right", AutogradVariant("plain"), "y"),
    ],
)
def test_variants_on_ranks(code_folder, monkeypatch, entry, right, variant, tensor):
    def findings(entry, variant):
        inference = variant is not None and variant.kind == "plain"
        monkeypatch.setattr(determinism, "_OF_INFERENCE", 1 if inference else 1 << 64)
        monkeypatch.setattr(
            determinism, "pick_variant_of_ranks", lambda *_: None if inference else variant
        )
        text, shards = SPEC.format(entry=entry), SHARDS
        if tensor == "s":
            text = TWO.format(entry=entry, reference="with_sum", output="s")
            shards = f"{SHARDS[:-1]}, s: {{dim: 0}}}}"
        text = text.replace("{rows: [4]}", f"{{world: [2], rows: [4]}}\nshards: {shards}")
        spec = parse_spec(text, code_folder / "ranks.yaml")
        return Runner("interpreter").run(spec, Case("ranks", {"world": 2, "rows": 4})).findings

    monkeypatch.setattr(determinism, "_OF_RANKS", 1)
    assert findings(entry, None) == ()
    assert findings(right, variant) == ()
    finding = findings(entry, variant)[0]
    assert finding.check == "determinism"
    assert finding.tensor == tensor or tensor in finding.detail
    assert str(variant) in finding.hint


@pytest.mark.parametrize(
    ("entry", "check", "words"),
    [
        ("over_its_input", "guards", "with inputs that require no grad: the entry changed its "),
        ("into_memory_of_its_own", "determinism", "y: "),
    ],
)
def test_inputs_that_require_no_grad(run, monkeypatch, entry, check, words):
    text = SPEC.replace("determinism]", "determinism, guards]")
    monkeypatch.setattr(determinism, "_OF_INFERENCE", 1 << 64)
    assert run(entry, None, text).status is Status.PASSED
    monkeypatch.setattr(determinism, "_OF_INFERENCE", 1)
    assert run("right", None, text).status is Status.PASSED
    finding = run(entry, None, text).findings[0]
    assert finding.check == check
    assert finding.title.startswith(words)
    assert "inputs that require no grad" in f"{finding.title} {finding.hint}"


def test_seeds_select_every_variant():
    problem = Problem(
        values={},
        names={},
        inputs={
            "q": torch.ones(1),
            "k": (kv := torch.ones(2))[:1],
            "v": kv[1:],
            "do": (do := torch.ones(1)),
        },
        outputs={},
        returns=("out", "lse", "max"),
        cotangents={"out": do, "max": torch.ones(1)},
        gradient_of={"dq": "q", "dk": "k", "dv": "v"},
    )
    picked = [pick_autograd_variant(problem, seed) for seed in range(300)]
    assert {variant.kind for variant in picked} == {*VARIANTS, "claimed", "absent"}
    assert {variant.names for variant in picked if variant.kind == "changed"} == {("q",)}
    subsets = {variant.requires for variant in picked if variant.kind == "some"}
    assert subsets >= {("k",), ("q",), ("v",)}
    assert ("k", "q", "v") not in subsets
    of_ranks = [pick_variant_of_ranks(problem, seed) for seed in range(900)]
    kinds = Counter(variant.kind for variant in of_ranks)
    assert kinds.keys() == {*VARIANTS, "claimed", "absent"}
    assert kinds["some"] > 450
