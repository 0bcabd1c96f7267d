"""The server that workers are forked from."""

import subprocess
import sys
import textwrap


def test_preload_computes_no_gradients():
    """With a GPU, PyTorch refuses gradients in what is forked from a process that took one."""
    program = """
        import torch

        def no_gradient(*_args, **_options):
            raise AssertionError("a gradient was taken")

        torch.autograd.graph._engine_run_backward = no_gradient
        torch.autograd._engine_run_backward = no_gradient
        import tlmatrix.engine.preload
        import sys

        assert "tilelang" in sys.modules and "sympy" in sys.modules
        try:
            one = torch.ones(1, requires_grad=True)
            torch.autograd.grad(2 * one, one, torch.ones(1))
        except AssertionError:
            print("would have been seen")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "would have been seen\n"), done.stderr
