"""Which tensors of a program answer that they are on the GPU, and what they compute."""

import pytest

import preloaded_python

PROGRAM = """
import torch

def on(tensor):
    assert tensor.is_cuda == (tensor.device.type == "cuda") == (tensor.get_device() == 0)
    return tensor.device.type

host, gpu = torch.randn(3, 4), torch.randn(3, 4, device="cuda")
module = torch.nn.Linear(3, 4)
module.register_buffer("table", torch.arange(4))
module.cuda()
moved = torch.randn(4)
moved.data = gpu[0]
with torch.device("cuda"):
    within = torch.ones(3)
for tensor in (
    gpu, gpu + 1, gpu * host[0, 0], torch.stack([gpu, gpu]), torch.zeros_like(gpu), moved, within,
    host.cuda(), host.to("cuda"), host.to(device="cuda", dtype=torch.half), host.to(gpu.device),
    host.to(gpu), torch.zeros_like(host, device="cuda"), torch.empty(2, device=gpu.device),
    torch.empty(2, device=0), torch.tensor([1]).to("cuda", non_blocking=True), module.table,
    torch.randn(3, requires_grad=True).cuda(), *module.parameters(),
):
    assert on(tensor) == "cuda"
for tensor in (
    host, host + 1, host.half(), torch.stack([host, host]), torch.zeros_like(host), *host.split(2),
    gpu.cpu(), gpu.to("cpu"), gpu.to(torch.device("cpu")), gpu.to(host), torch.tensor([1, 2]),
):
    assert on(tensor) == "cpu"
try:
    torch.testing.assert_close(gpu, gpu.cpu())
except AssertionError as error:
    assert "device" in str(error)
else:
    raise SystemExit("no difference of devices")
"""

DIVISIONS = """
import operator
import torch

gpu = torch.arange(1000, device="cuda").float()
host = gpu.cpu()
product = gpu * (torch.ones(()) / 448).item()
assert not torch.equal(host / 448, product.cpu())
for divided in (
    gpu / 448, gpu.div(448), torch.div(gpu, 448.0), torch.true_divide(gpu, 448), gpu.int() / 448,
    operator.itruediv(gpu.clone(), 448), gpu.clone().div_(448),
    torch.div(gpu, 448, rounding_mode=None), torch.div(gpu, 448, out=torch.empty_like(gpu)),
):
    assert torch.equal(divided, product)
half = gpu.bfloat16()
assert torch.equal(half / 448, (half.float() * (torch.ones(()) / 448).item()).bfloat16())
assert torch.equal(gpu.double() / 448, gpu.double() * (1 / 448))
assert torch.equal(gpu / torch.full_like(gpu, 448), (host / 448).cuda())
assert torch.equal(torch.div(gpu, 448, rounding_mode="floor"), (host // 448).cuda())
assert (gpu / 0)[1] == torch.inf
"""

DEFAULT_DEVICE = """
import torch

torch.set_default_device("cuda")
made = torch.randn(2, 3), torch.tensor([1]), torch.nn.Linear(3, 4).weight
assert all(tensor.is_cuda for tensor in made)
assert torch.get_default_device() == torch.device("cuda", 0)
assert torch.cdist(made[0], made[0]).is_cuda
assert not made[0].cpu().is_cuda
assert not torch.ones(2, device="cpu").is_cuda
torch.set_default_device(None)
assert not torch.ones(2).is_cuda
torch.set_default_device("cuda:0")
"""


@pytest.mark.parametrize("program", [PROGRAM, DIVISIONS, DEFAULT_DEVICE])
def test_tensors_answer_as_on_a_gpu(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    done = preloaded_python.run("-m", "tlmatrix", "exec", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
