"""Which tensors of a program answer that they are on the GPU."""

import subprocess
import sys

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


def test_tensors_answer_where_a_gpu_would_have_them(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "tlmatrix", "exec", "program.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
