"""What a trace says of one element: its block, its loops, what it was made of, where it departs."""

import inspect
import random

import numpy as np
import pytest
import tilelang
import tilelang.language as T
import torch
from role_kernels import tma_gemm
from tile_programs import tile_program, traced
from traced_kernels import attention, parts

from jit_kernel import jit_kernel
from tlmatrix.interpreter import NotMadeError, Trace, Unsupported, interpret, interpreted
from tlmatrix.interpreter.explain.text import rendered_lines
from tlmatrix_kernels.attention import varlen_attention
from tlmatrix_kernels.norm import rms_norm


def tensors(length=64):
    torch.manual_seed(0)
    return [torch.randn(length, 16).half() for _ in range(3)]


def explained(fault="", index=(55, 3), length=64):
    with interpret(trace=Trace("Out", index)) as run:
        out = attention(length, fault)(*tensors(length))
    (explanation,) = run.traces
    return explanation, out


def line_of(text):
    lines, first = inspect.getsourcelines(attention.func.orig_func)
    (found,) = (first + k for k, line in enumerate(lines) if text in line)
    return found


def elements(source):
    return np.unique(np.concatenate([flat for _, flat in source.iterations]))


def test_the_block_its_store_and_its_loop_are_named():
    explanation, out = explained()
    assert explanation.block.names == ("bx",)
    assert explanation.block.index == (3,)
    (writer,) = explanation.writers
    assert writer.location.line == line_of("Out[tile * ROWS + i, d]")
    (loop,) = explanation.loops
    assert (loop.name, loop.iterations, loop.first, loop.last) == ("step", 4, 0, 3)
    assert explanation.value == float(out[55, 3])


def test_only_keys_that_the_mask_lets_through_made_the_element():
    explanation, _ = explained()
    places = {source.buffer: source.place for source in explanation.sources}
    assert places == {"Q": "[55, 0:16]", "K": "[0:56, 0:16]", "V": "[0:56, 3]"}
    by_iteration = {
        iteration: (int(flat.min()) // 16, int(flat.max()) // 16)
        for source in explanation.sources
        if source.buffer == "V"
        for iteration, flat in source.iterations
    }
    assert by_iteration[(("step", 3),)] == (48, 55)


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_a_zero_weight_does_not_hide_a_factor_that_is_not_finite(strange):
    q, k, v = tensors()
    v[62] = strange  # masked for row 55, and 0 * NaN is NaN
    with interpret(trace=Trace("Out", (55, 3))) as run:
        out = attention(64)(q, k, v)
    (explanation,) = run.traces
    assert out[55, 3].isnan()
    (source,) = (each for each in explanation.sources if each.buffer == "V")
    assert source.nonfinite.tolist() == [62 * 16 + 3]
    assert source.place == "[0:56 and 62, 3]"
    assert "V[0:56 and 62, 3], not finite: [62, 3]" in str(explanation)
    assert explanation.first_nan is None


def test_facts_are_wrapped_between_words_on_a_narrow_terminal():
    explanation, _ = explained()
    lines = list(rendered_lines(explanation, width=50))
    facts = lines[1 : lines.index("")]
    assert max(map(len, facts)) <= 50
    assert any(line.startswith(" " * 12) for line in facts)
    words = " ".join(" ".join(facts).split())
    assert " ".join(str(explanation).partition("\n\n")[0].split()).endswith(words)


def test_nan_of_finite_inputs_names_the_statement_that_computed_it():
    x = torch.ones(64)
    x[55] = 1e30
    with interpret(trace=Trace("Y", (55,))) as run:
        normalized(64)(x)
    (explanation,) = run.traces
    assert np.isnan(explanation.value)
    assert explanation.first_nan.buffer == "y"
    assert "NaN       first in y at" in str(explanation)


# x * x / (x * x), which is NaN where x * x overflows.
@jit_kernel(X="f32[length]", Y="f32[length]", name="main", out_idx=[-1], threads=32)
def normalized(X, Y, length):
    square = T.alloc_fragment((length,), "float32")
    y = T.alloc_fragment((length,), "float32")
    for i in T.Parallel(length):
        square[i] = X[i] * X[i]
    for i in T.Parallel(length):
        y[i] = square[i] / square[i]
    T.copy(y, Y)


def test_steps_follow_the_row_through_every_tile_of_every_iteration():
    explanation, _ = explained()
    second = [s for s in explanation.steps if s.loops == (("step", 1),)]
    assert [s.buffer for s in second] == ["k", "s", "s", "s", "p", "added", "total", "v", "acc"]
    assert [s.place for s in second if s.buffer in ("p", "acc")] == ["[7, 0:16]", "[7, 3]"]
    total = [s.value for s in explanation.steps if s.buffer == "total"]
    assert total == sorted(total)
    assert "T.reduce_sum(p, added, dim=1)" in {s.text for s in second}


def test_a_float64_run_of_the_same_program_is_exact():
    explanation, _ = explained()
    q, k, v = (t.double() for t in tensors())
    scores = (q @ k.T)[55, :56] * 16**-0.5
    exact = float(torch.softmax(scores, 0) @ v[:56, 3])
    assert explanation.exact == pytest.approx(exact, rel=1e-12)
    assert all(s.deviation < 1e-5 for s in explanation.steps)
    assert explanation.departures == ()


def test_precision_lost_in_one_tile_is_named_at_its_line():
    explanation, _ = explained("weights")
    first = explanation.departures[0]
    assert (first.buffer, first.departs, first.loops) == ("p", "rounded", (("step", 0),))
    assert first.location.line == line_of("p[i, j] = T.exp2")
    assert first.deviation > 2.0**-10
    assert "p rounded in step 0 and 3 more iterations" in str(explanation)


def test_a_turn_that_is_left_out_shows_in_loop_and_sources():
    explanation, _ = explained("last")
    assert explanation.loops[0].last == 2
    assert {s.buffer: s.place for s in explanation.sources}["V"] == "[0:48, 3]"


def test_a_statement_of_one_turn_alone_is_listed_in_that_turn_alone():
    explanation, _ = explained("scale")
    line = line_of("s[i, j] = s[i, j] * scale")
    iterations = {s.loops for s in explanation.steps if s.location.line == line}
    assert iterations == {(("step", 2),)}


def test_all_blocks_that_add_to_an_element_are_named_and_the_largest_is_followed():
    x = torch.tensor([[1.0] * 8, [-5.0] * 8, [2.0] * 8])
    with interpret(trace=True) as run:
        y = torch.zeros(8)
        interpreted(parts(8, 3))(x, y)
        explanation = run.explain(y, (4,))
    assert [(w.block.index, w.added) for w in explanation.writers] == [
        ((0,), 1.0),
        ((1,), -5.0),
        ((2,), 2.0),
    ]
    assert explanation.block.index == (1,)
    assert explanation.writers[-1].value == -2.0


def test_the_kernels_of_a_gradient_are_followed_one_after_the_other():
    torch.manual_seed(0)
    cu = torch.tensor([0, 40, 57], dtype=torch.int32)
    q, k, v = (torch.randn(57, h, 32).half().requires_grad_() for h in (2, 1, 1))
    with interpret(trace=True) as run:
        out, _ = varlen_attention(q, k, v, cu, cu, causal=True, backward="atomic")
        dq, *_ = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
        cast = run.explain(dq, (45, 1, 7))
        forward = run.explain(out, (45, 1, 7))
    assert cast.kernel == "combine"
    assert cast.earlier.kernel == "packed_atomic_gradients"
    assert cast.earlier.index == (45, 1, 7)
    makers = {s.buffer: s.made_by for s in cast.earlier.sources}
    assert makers["q"] is makers["k"] is makers["do"] is None
    statistics = {maker for name, maker in makers.items() if "lse" in name or "delta" in name}
    earlier = {str(launch) for launch in run.log.launches[: cast.earlier.launch - 1]}
    assert statistics
    assert statistics <= earlier
    assert {s.buffer: s.place for s in forward.sources}["k"] == "[40:46, 0, 0:32]"
    assert not {r.buffer for r in forward.addresses} - {"cu_seqlens_q", "cu_seqlens_k"}
    assert "dq_sum[45, 1, 7] of kernel packed_atomic_gradients" in str(cast)
    stored = {each.buffer: each.dtype for each in cast.rounding.carried}
    assert stored["out"] == "float16"  # of the forward pass, through delta
    assert forward.rounding.carried == ()


@pytest.mark.parametrize("changed", [False, True])
def test_the_rounding_of_an_earlier_launch_is_measured_through_the_next(changed):
    """As in a backward pass: `out` in 16 bits, delta of it in 32, and a product with a delta."""

    def stored(n, dtype, factor, source="float32"):
        @T.prim_func
        def scaled(X: T.Tensor((n,), source), Y: T.Tensor((n,), dtype)):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    Y[i] = T.Cast(dtype, T.Cast("float32", X[i]) * factor)

        return interpreted(scaled)

    n = 32
    x = torch.linspace(1, 2, n)
    out, delta, result = torch.empty(n).half(), torch.empty(n), torch.empty(n)
    with interpret(trace=True) as run:
        stored(n, "float16", 1.0)(x, out)
        if changed:
            out += 0  # PyTorch changes it, so that the float64 run may not go on with its own
        stored(n, "float32", 2.0, "float16")(out, delta)
        stored(n, "float32", 1000.0)(delta, result)
        explanation = run.explain(result, (5,))
    exact = 2000 * float(x[5])
    moved = float(result[5]) - exact
    assert abs(moved) > 0.1
    rounding = explanation.rounding
    changes = {each.buffer + each.dtype: each.change for each in rounding.carried}
    if changed:
        assert rounding.exact == pytest.approx(float(result[5]), rel=1e-6)
        assert changes["Yfloat16"] == 0
        return
    assert rounding.exact == pytest.approx(exact, rel=1e-6)
    assert changes["Yfloat16"] == pytest.approx(moved, rel=1e-3)
    assert f"{moved:+.1e}  launch 1, scaled  Y (float16)" in str(explanation)


def test_what_pytorch_makes_of_kernels_is_not_blamed_on_one():
    torch.manual_seed(0)
    x, w = torch.randn(9, 40).requires_grad_(), torch.randn(40).requires_grad_()
    with interpret(trace=True) as run:
        y = rms_norm(x, w)
        dx, dw = torch.autograd.grad(y, (x, w), torch.randn_like(y))
        assert run.explain(dx, (8, 39)).kernel == "rms_norm_backward"
        with pytest.raises(NotMadeError, match="PyTorch made it"):
            run.explain(dw, (39,))


def test_a_launch_is_explained_with_its_arguments_as_they_were():
    def double(n):
        @T.prim_func
        def doubled(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(n):
                    Y[i] = X[i] * 2.0

        return doubled

    x, y = torch.ones(8), torch.empty(8)
    with interpret(trace=True) as run:
        kernel = interpreted(double(8))
        kernel(x, y)
        kernel(y, x)  # overwrites the first launch's input
        assert run.explain(x, (3,)).value == 4.0
        first = run.log.launches[0]
        assert float(first.before["X"][3]) == 1.0
        y.add_(1)
        with pytest.raises(Unsupported, match="PyTorch has changed X since"):
            run.explain(x, (3,))


def test_a_read_before_any_write_is_told():
    def forgetful():
        @T.prim_func
        def main(Y: T.Tensor((8,), "float32")):
            with T.Kernel(1, threads=32):
                f = T.alloc_fragment((8,), "float32")
                for i in T.Parallel(8):
                    if i < 4:
                        f[i] = 1.0
                for i in T.Parallel(8):
                    Y[i] = f[i] + 1.0

        return main

    with interpret(trace=Trace("Y", (6,))) as run:
        interpreted(forgetful(), out_idx=0)()
    (read,) = run.traces[0].missing
    assert (read.buffer, read.place) == ("f", "[6]")
    assert "f[6] was read before anything wrote it" in str(run.traces[0])


def test_loops_without_a_variable_are_counted():
    def halve():
        @T.prim_func
        def main(X: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
            with T.Kernel(4, threads=32) as bx:
                left = T.alloc_var("float32")
                left = X[bx]
                while left >= 1.0:
                    left = left * 0.5
                Y[bx] = left

        return main

    with interpret(trace=Trace("Y", (2,))) as run:
        interpreted(halve(), out_idx=1)(torch.tensor([1.0, 2.0, 11.0, 4.0]))
    (explanation,) = run.traces
    assert [(loop.name, loop.iterations) for loop in explanation.loops] == [("", 4)]
    assert [s.value for s in explanation.steps if s.buffer == "left"] == [
        11.0, 5.5, 2.75, 1.375, 0.6875,
    ]  # fmt: skip
    assert explanation.sources[0].place == "[2]"


def test_kernels_whose_threads_play_roles_are_named_not_traced():
    a, b = torch.randn(32, 32).half(), torch.randn(32, 32).half()
    with interpret(trace=Trace("C", (0, 0))) as run:
        tma_gemm(32, 32, 32, 2)(a, b)
    assert run.traces == []
    assert "threads have warp roles" in run.untraced["tma_gemm"]


def test_nothing_is_kept_unless_asked_for():
    with interpret() as run:
        attention(64)(*tensors())
    assert run.log is None
    with pytest.raises(ValueError, match=r"interpret\(trace=True\)"):
        run.explain(torch.zeros(1), (0,))


def test_what_an_element_was_not_made_of_can_change_without_changing_it(tmp_path):
    """Random tile programs: everything outside of the trace's sources is changed."""
    assert sum(_compared(seed, tmp_path) for seed in range(12)) >= 8


def _compared(seed, tmp_path):
    names = ["A", "B", "V", "I", "Out", "Row", "Num"]
    program = tile_program(random.Random(seed))
    func = traced(program, tmp_path)
    arguments = program.arguments()
    with interpret(trace=True) as session:
        interpreted(func)(*arguments)
    choices = random.Random(seed)
    compared = 0
    for name in ("Out", "Row"):
        tensor = arguments[names.index(name)]
        index = tuple(choices.randrange(size) for size in tensor.shape)
        try:
            explanation = session.explain(tensor, index)
        except NotMadeError:
            continue
        if len({writer.block for writer in explanation.writers}) > 1:
            continue  # what other blocks add is not of this trace
        value = float(tensor[index])
        assert explanation.value == pytest.approx(value, nan_ok=True)
        kept = {source.buffer: elements(source) for source in explanation.sources}
        others = program.arguments()
        for changed in "ABV":
            flat = others[names.index(changed)].view(-1)
            spared = flat[kept.get(changed, [])].clone()
            flat.mul_(2).add_(1.5)
            flat[kept.get(changed, [])] = spared
        with interpret():
            interpreted(func)(*others)
        again = float(others[names.index(name)][index])
        assert again == pytest.approx(value, rel=0, abs=0, nan_ok=True), program.source
        compared += 1
    return compared


@tilelang.jit(out_idx=[1])
def unfolded_image(n, h, w, c, kernel, pad, pixels, channels):
    rows, columns = n * h * w, kernel * kernel * c

    @T.prim_func
    def main(X: T.Tensor((n, h, w, c), "float16"), Y: T.Tensor((rows, columns), "float16")):
        with T.Kernel(rows // pixels, columns // channels, threads=128) as (bx, by):
            tile = T.alloc_shared((pixels, channels), "float16")
            T.im2col(X, tile, bx, by, kernel, 1, 1, pad)
            T.copy(tile, Y[bx * pixels, by * channels])

    return main


def test_an_element_of_im2col_is_followed_to_its_pixel():
    image = torch.randn(1, 8, 8, 16, dtype=torch.float16)
    with interpret(trace=True) as run:
        found = unfolded_image(1, 8, 8, 16, 3, 1, 16, 8)(image)
        # Row 3 * 8 + 5 is pixel (3, 5); column (0 * 3 + 2) * 16 + 11 the tap (0, 2), channel 11.
        explained = run.explain(found, (29, 43))
    (source,) = explained.sources
    assert (source.buffer, source.place) == ("X", "[0, 2, 6, 11]")
    assert found[29, 43] == image[0, 2, 6, 11]
