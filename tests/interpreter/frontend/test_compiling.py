"""`torch.compile` in a program that takes the CPU for its GPU."""

import preloaded_python

PROGRAM = """
import tilelang, tilelang.language as T, torch
from torch._dynamo.exc import Unsupported

@tilelang.jit(out_idx=[-1])
def doubled(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[i] * 2
    return main

@torch.library.custom_op("test_compiling::double", mutates_args=(), device_types="cuda")
def double(x: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda
    return doubled(x.shape[0])(x.detach())

@double.register_fake
def _(x):
    assert x.is_cuda and x.device == torch.device("cuda", 0)
    return torch.empty(x.shape, device="cuda")

double.register_autograd(lambda context, gradient: double(gradient.contiguous()))

graphs = []

def backend(graph, inputs):
    assert all(x.is_cuda for x in inputs)
    graphs.append([n.target for n in graph.graph.nodes if n.op == "call_function"])
    return graph.forward

def function(x, out):
    if not x.is_cuda:
        raise AssertionError("on the CPU")
    out.copy_(double(x).to("cuda") + torch.ones(x.shape, device=x.device))
    return out

x, out = torch.arange(32.0, device="cuda"), torch.empty(32, device="cuda")
wanted = 2 * torch.arange(32.0, device="cuda") + 1
for options in ({"backend": backend, "fullgraph": True}, {"fullgraph": True}, {}):
    out.zero_()
    assert torch.equal(torch.compile(function, **options)(x, out), wanted), options
    assert torch.equal(torch.compile(**options)(function)(x, out), wanted), options
assert graphs and all(torch.ops.test_compiling.double.default in graph for graph in graphs)

x.requires_grad_()
torch.compile(lambda x: double(x).sum(), fullgraph=True)(x).backward()
assert torch.equal(x.grad, torch.full((32,), 2.0, device="cuda"))

# A kernel has no graph: it divides one, and is an error where one graph is asked for.
graphs.clear()
around = lambda x: doubled(32)(x + 1) * torch.ones(32, device="cuda")
assert torch.equal(torch.compile(around, backend=backend)(out), 2 * (out + 1))
assert len(graphs) == 2, graphs
try:
    torch.compile(around, fullgraph=True)(out)
except Unsupported as error:
    assert "a kernel of TileLang has no graph" in str(error)
else:
    raise AssertionError("compiled")
"""


def test_dynamo_traces_a_program_as_on_a_gpu(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = preloaded_python.run("-m", "tlmatrix", "exec", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
