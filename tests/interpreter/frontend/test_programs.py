"""`tlmatrix exec` runs a script written for a GPU, unchanged, on the CPU."""

import textwrap

import pytest

import preloaded_python
from outside_project import command_line

KERNEL = """
import sys
import tilelang
import tilelang.language as T
import torch
from tilelang.profiler import do_bench

@tilelang.jit(out_idx=[-1])
def double(n):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as b:
            for i in T.Parallel(64):
                Y[b * 64 + i] = X[b * 64 + i] * 2.0

    return main
"""


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run the kernel and a body as a script, in this process; what a shell would see of it."""
    monkeypatch.chdir(tmp_path)

    def run(body, *arguments, options=(), code=0):
        script = tmp_path / "script.py"
        script.write_text(KERNEL + textwrap.dedent(body))
        return command_line("exec", *options, str(script), *arguments, code=code).out

    return run


def test_cuda_tensors_kernels_arguments_and_assertions(execute):
    out = execute(
        """
        n = int(sys.argv[1])
        x = torch.randn(n, device="cuda")
        assert x.is_cuda and x.device.type == "cuda" and x.device == torch.device("cuda:0")
        with torch.device("cuda"):
            z = torch.zeros(n)
        z = torch.zeros(n).to("cuda", torch.float32) + torch.zeros(n).cuda() + z
        g = torch.Generator(device="cuda").manual_seed(1)
        torch.randn(3, device=x.device, generator=g)
        torch.cuda.manual_seed(3)
        y = double(n)(x)
        torch.cuda.synchronize()
        torch.testing.assert_close(y + z, 2 * x)
        assert __name__ == "__main__"
        print("device", y.cpu().numpy().shape, torch.cuda.get_device_name())
        """,
        "100",
    )
    assert "device (100,) tlmatrix interpreter (sm_90a)" in out


def test_a_copy_to_the_host_is_a_copy(execute):
    out = execute(
        """
        x = torch.ones(4, device="cuda")
        before = x.cpu()
        there = before.to("cuda")
        x += 1
        there += 5
        print(before.tolist(), there.tolist())
        """
    )
    assert "[1.0, 1.0, 1.0, 1.0] [6.0, 6.0, 6.0, 6.0]" in out


def test_operators_registered_with_torch_see_tensors_of_the_device(execute):
    execute(
        """
        @torch.library.custom_op("tlm_programs::doubled", mutates_args=())
        def doubled(x: torch.Tensor) -> torch.Tensor:
            assert x.is_cuda and x.device.type == "cuda"
            return double(x.shape[0])(x)

        @torch.library.custom_op("tlm_programs::tripled", mutates_args=(), device_types="cuda")
        def tripled(x: torch.Tensor) -> torch.Tensor:
            return x + doubled(x) + torch.zeros(x.shape[0], device="cuda")

        tripled.register_autograd(lambda ctx, grad: 3 * grad)
        x = torch.ones(100, device="cuda", requires_grad=True)
        tripled(x).sum().backward()
        assert x.grad.eq(3).all() and torch.ops.tlm_programs.doubled(x).eq(2).all()
        """
    )


def test_benchmarks_call_their_function_once_and_measure_nan(execute):
    out = execute(
        """
        kernel = double(64)
        profiler = kernel.get_profiler()
        profiler.assert_allclose(lambda x: x * 2)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        end.record()
        calls = []
        times = [do_bench(lambda: calls.append(1)), profiler.do_bench(), start.elapsed_time(end)]
        times += do_bench(lambda: None, quantiles=[0.5, 0.9])
        print(times, f"{2 / times[0]:.2f} TFLOPS", len(calls))
        """
    )
    assert "[nan, nan, nan, nan, nan] nan TFLOPS 1" in out
    assert out.count("there is no GPU to time") == 1


def test_the_profiler_still_finds_a_wrong_kernel(execute):
    out = execute("double(64).get_profiler().assert_allclose(lambda x: x * 3)", code=1)
    assert "AssertionError" in out
    assert "commands" not in out


def test_the_first_configuration_of_an_autotuned_kernel_stands_in(execute):
    out = execute(
        """
        from tilelang.autotuner import AutoTuner

        @tilelang.autotune(configs=[{"block": 32}, {"block": 64}])
        @tilelang.jit(out_idx=[-1])
        def tuned(n, block=16):
            @T.prim_func
            def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
                with T.Kernel(T.ceildiv(n, block), threads=32) as b:
                    for i in T.Parallel(block):
                        Y[b * block + i] = X[b * block + i] + block

            return main

        kernel = tuned(64)
        assert (kernel(torch.zeros(64, device="cuda")) == 32).all()
        print(kernel.latency, kernel.config)

        def plain(block):
            return tuned.jit_impl.get_tir(64, block=block)

        found = AutoTuner.from_kernel(plain, [{"block": 16}]).set_compile_args(out_idx=[1]).run()
        assert (found.kernel(torch.zeros(64, device="cuda")) == 16).all()
        print(found.latency, found.config)
        """
    )
    assert "nan {'block': 32}" in out
    assert "nan {'block': 16}" in out


def test_the_device_claims_an_architecture_and_its_multiprocessors(execute):
    out = execute(
        """
        from tilelang.carver.arch import driver
        from tilelang.contrib import nvcc

        print(torch.cuda.get_device_capability(), driver.get_num_sms(), torch.cuda.device_count())
        print(torch.cuda.get_device_properties(0).multi_processor_count, torch.cuda.is_available())
        print(driver.get_shared_memory_per_block(), driver.get_max_dynamic_shared_size_bytes())
        print(nvcc.get_target_compute_version())
        """,
        options=("--arch", "sm_80", "--sms", "3"),
    )
    assert out.splitlines() == ["(8, 0) 3 1", "3 True", "49152 167936", "8.0"]


def test_streams_know_tensors_and_events(execute):
    out = execute(
        """
        x = torch.ones(4, device="cuda")
        stream = torch.cuda.current_stream(x.device)
        x.record_stream(stream)
        x.record_stream(torch.cuda.Stream())
        assert stream.query() and stream.record_event().query()
        assert isinstance(torch.cuda.Stream(), torch.cuda.Stream)
        assert not torch.cuda.is_current_stream_capturing()
        doubled = torch.cuda.make_graphed_callables(lambda t: t * 2, (x,))
        print(doubled(x).sum().item())
        """
    )
    assert out == "8.0\n"


def test_cuda_graphs_are_refused_with_their_place_and_what_to_do(execute):
    out = execute(
        """
        if not "interpreter" in torch.cuda.get_device_name():
            raise AssertionError
        graph = torch.cuda.CUDAGraph()  # HERE
        """,
        code=1,
    )
    assert "has no CUDA graphs: leave them out" in out
    assert "called at" in out
    assert "script.py:" in out
    assert "Traceback" not in out


PADDED = """
    @tilelang.jit
    def padded():
        @T.prim_func
        def main(Y: T.Tensor((33,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(32):
                    Y[i] = 1.0

        return main

    padded()(torch.empty(33, device="cuda"))
    """


def test_single_sanitizers_can_be_left_out_of_a_script(execute):
    execute(PADDED, options=("--sanitize",), code=1)
    execute(PADDED, options=("--sanitize", "--without", "unwritten,lanes"))


def test_sanitizers_that_do_not_exist_cannot_be_left_out(execute):
    out = execute(PADDED, options=("--sanitize", "--without", "unwriten"), code=2)
    assert "no sanitizer 'unwriten'; known: bounds," in out
    out = execute(PADDED, options=("--without", "unwritten"), code=2)
    assert "--without needs --sanitize" in out


def test_sanitizers_can_watch_a_script(execute):
    body = """
        @tilelang.jit(out_idx=[-1])
        def unwritten():
            @T.prim_func
            def main(Y: T.Tensor((32,), "float32")):
                with T.Kernel(1, threads=32):
                    s = T.alloc_shared((32,), "float32")
                    T.copy(s, Y)

            return main

        unwritten()()
        """
    execute(body)
    execute(body, options=("--sanitize",), code=1)


def test_the_scripts_own_exit_code(execute):
    execute("sys.exit(7)", code=7)


def test_what_is_not_modelled_is_one_line(execute):
    out = execute(
        """
        @tilelang.jit
        def extern():
            @T.prim_func
            def main(Y: T.Tensor((32,), "float32")):
                with T.Kernel(1, threads=32):
                    for i in T.Parallel(32):
                        Y[i] = T.call_extern("float32", "my_device_function", i)

            return main

        extern()
        """,
        code=1,
    )
    assert out.startswith("tlmatrix: the interpreter does not model the operation")
    assert "my_device_function" in out
    assert "Traceback" not in out


def test_a_script_that_is_not_there():
    assert "no such script: nowhere.py" in command_line("exec", "nowhere.py", code=2).out


def test_as_a_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, torch\nprint(torch.ones(2, device='cuda').sum(), sys.argv[1:])")
    done = preloaded_python.run(
        "-m", "tlmatrix", "exec", str(script), "--arch", "mine", cwd=tmp_path
    )
    assert done.stdout == "tensor(2.) ['--arch', 'mine']\n", done.stderr


@pytest.mark.parametrize("arch", ["90", "gfx942"])
def test_an_architecture_that_makes_no_sense(arch):
    from tlmatrix.interpreter.frontend.device import stand_in

    with pytest.raises(ValueError, match="arch must be like"), stand_in(arch=arch):
        pass


def test_no_driver_is_asked_for_an_accelerator(monkeypatch):
    """A build of PyTorch for CUDA would ask one, as `torch.compile` does for a stream."""
    import torch

    from tlmatrix.interpreter.frontend.device import stand_in

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with stand_in():
        assert not torch.accelerator.is_available()
    assert torch.accelerator.is_available()


def test_the_stand_in_leaves_nothing_behind():
    import torch

    from tlmatrix.interpreter.frontend.device import stand_in

    before = dict(vars(torch.cuda)), torch.Generator
    with stand_in():
        assert torch.zeros(2, device="cuda").is_cuda
        assert torch.cuda.is_available()
    after = dict(vars(torch.cuda)), torch.Generator
    assert before == after
    assert not torch.zeros(2).is_cuda
