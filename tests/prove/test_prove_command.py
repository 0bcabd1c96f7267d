"""`tlmatrix prove` on a project of a user: answers, refutations by a case, exit codes, JSON."""

import json
import re
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from outside_project import command_line
from tlmatrix.check.finding import Finding
from tlmatrix.commands.prove import _table_line
from tlmatrix.prove.answers import KernelProofs, Proof
from tlmatrix.prove.refuting import shows

_KERNEL = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def rows_kernel(guarded, step):
    total, bounds = T.dynamic("total, bounds")

    @T.prim_func
    def move_rows(
        X: T.Tensor((total, 8), "float32"),
        Offsets: T.Tensor((bounds,), "int32"),
        longest: T.int32,
        Y: T.Tensor((total, 8), "float32"),
    ):
        with T.Kernel(T.ceildiv(longest, 16), bounds - 1, threads=128) as (tile, b):
            for i, d in T.Parallel(16, 8):
                row = tile * step + i
                if guarded:
                    if row < Offsets[b + 1] - Offsets[b]:
                        Y[Offsets[b] + row, d] = X[Offsets[b] + row, d] + 1
                else:
                    Y[Offsets[b] + row, d] = X[Offsets[b] + row, d] + 1

    return move_rows


def add_one(x, offsets, longest, guarded=True, step=16):
    y = torch.empty_like(x)
    if x.numel():
        rows_kernel(guarded, step)(x, offsets, longest, y)
    return y


def reference(x, offsets):
    return x + 1
"""

_SPEC = """
name: rows
problem:
  inputs:
    x: {{shape: [sum(seqlens), 8], dtype: float32}}
    offsets: {{offsets_of: seqlens}}
  outputs: [y]
  reference: {module}:reference
entry: {module}:add_one
call: {{x: x, offsets: offsets, longest: max(seqlens), guarded: guarded, step: step}}
axes:
  guarded: [{guarded}]
  step: [{step}]
  seqlens: [[5], [17, 3], [16, 0, 33]]
{more}
"""


def _project(folder, *, guarded="true", step=16, more=""):
    module = f"rows_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(_KERNEL)
    path = folder / "rows.yaml"
    more = textwrap.dedent(more)
    path.write_text(_SPEC.format(module=module, guarded=guarded, step=step, more=more))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_right_kernel_is_proven_from_its_first_case(folder):
    path = _project(folder)
    outcome = command_line("prove", str(path), "-n", "1", "--json", "proofs.json", code=0)
    line = next(line for line in outcome.out.splitlines() if "move_rows" in line)
    for name in ("races", "own sequence", "coverage", "bounds", "overflow"):
        assert f"{name} proven" in line
    assert " 0 refuted, 0 unknown" in outcome.out
    (written,) = json.loads((folder / "proofs.json").read_text())
    proofs = written["kernels"][0]["proofs"]
    assert {proof["answer"] for proof in proofs} == {"proven"}
    assert any("Offsets is 0 first" in fact for proof in proofs for fact in proof["facts"])


def test_a_fault_is_refuted_by_a_case_that_the_interpreter_ran(folder):
    """The first case has one sequence, with which nothing is wrong."""
    path = _project(folder, guarded="false")
    outcome = command_line("prove", f"{path}::guarded=false-seqlens=5-step=16", "-n", "1", code=1)
    assert "own sequence of Y: refuted" in outcome.out
    assert "races of Y: refuted" in outcome.out
    repro = next(line for line in outcome.out.splitlines() if "repro: " in line)
    case = repro.split("'")[1]
    command_line("repro", case, code=1)


def test_a_fault_of_a_second_architecture_is_refuted_for_it(folder):
    path = _project(folder, more="architectures: [sm_90a, sm_80]")
    module = next(folder.glob("rows_*.py"))
    capable = "guarded and torch.cuda.get_device_capability() != (8, 0)"
    module.write_text(module.read_text().replace("(guarded, step)(x", f"({capable}, step)(x"))
    outcome = command_line("prove", str(path), "-n", "1", code=1)
    assert re.search("move_rows +sm_90a: races proven; own sequence proven", outcome.out)
    assert re.search("move_rows +sm_80: races refuted; own sequence refuted", outcome.out)
    _, case, options = next(line for line in outcome.out.splitlines() if "repro: " in line).split(
        "'"
    )
    assert options.split() == ["--backend", "interpreter", "--arch", "sm_80"]
    assert command_line("repro", case, *options.split()).code == 1
    assert command_line("repro", case, *options.split()[:-1], "sm_90a").code == 0


def test_a_gap_is_refuted_as_unwritten_rows(folder):
    path = _project(folder, step=24)
    outcome = command_line("prove", str(path), "-n", "1", code=1)
    assert "coverage of Y: refuted" in outcome.out


def test_a_demanded_property_that_is_unknown_fails_unless_the_spec_allows_it(folder):
    """All rows of one sequence at most: no case has the race that other lengths would have."""
    more = """
    constraints: [len(seqlens) == 1]
    prove: {{properties: [races], {unknown}}}
    """
    path = _project(folder, guarded="false", more=more.format(unknown=""))
    outcome = command_line("prove", str(path), "-n", "1", "--json", "proofs.json", code=1)
    (written,) = json.loads((folder / "proofs.json").read_text())
    races = next(p for p in written["kernels"][0]["proofs"] if p["name"] == "races")
    assert [[0], 0] in races["values"]["tables"]["Offsets"]
    assert "the spec demands it: move_rows: races of Y is unknown" in outcome.out
    assert "prove.given" in outcome.out
    allowed = 'unknown: {"move_rows: races of Y": one sequence a call}'
    path = _project(folder, guarded="false", more=more.format(unknown=allowed))
    outcome = command_line("prove", str(path), "-n", "1", code=0)
    assert "allowed by the spec: one sequence a call" in outcome.out


def test_a_run_reports_what_was_proven_until_the_sources_change(folder):
    path = _project(folder)
    assert command_line("prove", str(path), "-n", "1").code == 0
    words = "properties of its kernels are proven for all sizes"
    assert words in command_line("run", str(path), "-n", "0").out
    module = next(folder.glob("rows_*.py"))
    module.write_text(module.read_text() + "\n\nCHANGED = True\n")
    assert words not in command_line("run", str(path), "-n", "0").out


def test_a_given_condition_that_a_launch_contradicts_is_reported(folder):
    path = _project(folder, more='prove: {given: {"longest <= 4": "wrong"}}')
    outcome = command_line("prove", str(path), "-n", "1", code=1)
    assert "prove.given: longest <= 4 does not hold in a launch of move_rows" in outcome.out


def test_a_given_text_that_is_no_condition_on_sizes_is_reported(folder):
    path = _project(folder, more='prove: {given: {"max(longest, 3) <= 64": "few"}}')
    outcome = command_line("prove", str(path), "-n", "1")
    assert "not a condition on sizes, at character 1 of 'max(longest, 3) <= 64'" in outcome.out


_SCRIPT = """
import torch
from {module} import add_one, reference

x, offsets = torch.randn(20, 8), torch.tensor([0, 17, 20], dtype=torch.int32)
torch.testing.assert_close(add_one(x, offsets, 17).cpu(), reference(x, offsets))
print("right")
"""


def test_the_kernels_of_a_script_are_proven_when_it_ends(folder):
    """Its one launch shows the offsets; nothing says that more rows than `longest` are excluded."""
    _project(folder)
    module = next(folder.glob("rows_*.py")).stem
    (folder / "script.py").write_text(_SCRIPT.format(module=module))
    outcome = command_line("exec", "--prove", "script.py", code=0)
    line = next(line for line in outcome.out.splitlines() if "move_rows" in line)
    assert "races proven" in line
    assert "own sequence proven" in line
    assert "of 1 kernel proven, 0 refuted" in outcome.out


def test_a_launch_of_other_lengths_refutes_a_property_of_a_script(folder):
    """The script's own lengths are right: one fills its tile, and the last may go over the end."""
    _project(folder)
    module = next(folder.glob("rows_*.py")).stem
    text = (
        _SCRIPT.format(module=module).replace("17, 20", "16, 20").replace(", 17)", ", 16, False)")
    )
    (folder / "script.py").write_text(text)
    outcome = command_line("exec", "--prove", "script.py")
    assert "right" in outcome.out
    assert outcome.code == 1, outcome.out
    assert "races of Y: refuted" in outcome.out
    assert "own sequence of Y: refuted" in outcome.out
    lines = outcome.out.splitlines()
    launch = next(line for line in lines if "in a launch with " in line)
    assert re.search(r"Offsets = \[0, \d+, \d+\]", launch)


def test_no_launch_has_longer_sequences_than_those_of_the_script(folder):
    """A grid for sequences of 48 rows at most is not refuted by longer ones."""
    _project(folder)
    path = next(folder.glob("rows_*.py"))
    text = path.read_text().replace("T.ceildiv(longest, 16)", "3")
    text = text.replace("tilelang.jit\n", "tilelang.jit(out_idx=-1)\n")
    path.write_text(
        text.replace(
            "        rows_kernel(guarded, step)(x, offsets, longest, y)",
            "        y = rows_kernel(guarded, step)(x, offsets, longest)",
        )
    )
    script = _SCRIPT.format(module=path.stem).replace("20", "60").replace("17", "41")
    (folder / "script.py").write_text(script)
    outcome = command_line("exec", "--prove", "script.py", code=0)
    assert "coverage of Y: unknown" in outcome.out


_BACKWARD = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def key_gradients():
    total, bounds = T.dynamic("total, bounds")

    @T.prim_func
    def add_gradients(
        dO: T.Tensor((total, 8), "float32"),
        Offsets: T.Tensor((bounds,), "int32"),
        longest: T.int32,
        dK: T.Tensor((total, 8), "float32"),
    ):
        with T.Kernel(T.ceildiv(longest, 16), bounds - 1, threads=128) as (tile, b):
            first, after = Offsets[b] + tile * 16, Offsets[b + 1]
            dk = T.alloc_fragment((16, 8), "float32")
            T.copy(dO[first, 0], dk)
            for i, d in T.Parallel(16, 8):
                value = T.if_then_else(first + i < after, dk[i, d], 0)
                T.atomic_add(dK[first + i, d], value)

    return add_gradients


x, dk = torch.randn(20, 8), torch.zeros(20, 8)
key_gradients()(x, torch.tensor([0, 16, 20], dtype=torch.int32), 16, dk)
torch.testing.assert_close(dk, x)
"""

_TOP_K = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def selection(room):
    n = T.dynamic("n")

    @T.prim_func
    def select(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=64):
            thread = T.get_thread_binding()
            kept = T.alloc_shared((room,), "int32")
            count = T.alloc_shared((1,), "int32")
            T.fill(count, 0)
            T.sync_threads()
            for step in T.serial(T.ceildiv(n, 64)):
                i = step * 64 + thread
                if i < n:
                    if X[i] >= 0.99:
                        place = T.atomic_add(count[0], 1, return_prev=True)
                        {guard}kept[place] = i

    return select


selection(64)(torch.arange(300) / 300, torch.zeros(300))
"""

_GROUPED = """
import tilelang
import tilelang.language as T
import torch


@tilelang.jit
def grouped(groups):
    rows = T.dynamic("rows")

    @T.prim_func
    def multiply(
        X: T.Tensor((rows, 16), "float32"),
        W: T.Tensor((groups, 16), "float32"),
        Sizes: T.Tensor((groups,), "int32"),
        Starts: T.Tensor((groups,), "int32"),
        Padded: T.Tensor((groups,), "int32"),
        Y: T.Tensor((rows, 16), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 32) + groups, threads=128) as tile:
            group = T.alloc_var("int32")
            group = 0
            for g in range(groups):
                group = T.if_then_else(tile * 32 >= Padded[g], g, group)
            done = tile * 32 - Padded[group]
            for i, d in T.Parallel(32, 16):
                if done + {row} < Sizes[group]:
                    Y[Starts[group] + done + i, d] = X[Starts[group] + done + i, d] * W[group, d]

    return multiply


sizes = torch.tensor([40, 33, 20], dtype=torch.int32)
padded = (sizes + 31) // 32 * 32
starts, padded = (each.cumsum(0).int() - each for each in (sizes, padded))
x, w, y = torch.randn(93, 16), torch.randn(3, 16), torch.empty(93, 16)
grouped(3)(x, w, sizes, starts, padded, y)
"""


@pytest.mark.parametrize(
    ("script", "fault", "right", "wanted"),
    [
        (_BACKWARD, "", None, "own sequence of dK: refuted"),
        (_TOP_K, "", "if place < room: ", "bounds of shared memory: refuted"),
        (_GROUPED, "0", "i", "races of Y: refuted"),
    ],
    ids=["packed backward", "top-k overflow", "grouped gemm"],
)
def test_faults_of_programs_that_their_own_results_do_not_show(
    folder, script, fault, right, wanted
):
    """Blocks add to the next sequence; ties overflow shared memory; a tile straddles two groups."""
    (folder / "script.py").write_text(script.format(guard=fault, row=fault))
    outcome = command_line("exec", "--prove", "script.py", code=1)
    assert wanted in outcome.out
    if right is not None:
        (folder / "script.py").write_text(script.format(guard=right, row=right))
        outcome = command_line("exec", "--prove", "script.py", code=0)
        assert " 0 refuted" in outcome.out


_KILLED = """
import os, signal, time
from tlmatrix.prove.kernels import process_pool

if __name__ == "__main__":
    pool = process_pool(1)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 60)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_processes_of_proofs_end_with_a_main_process_that_is_killed(folder):
    (folder / "killed.py").write_text(_KILLED)
    main = subprocess.run([sys.executable, "killed.py"], stdout=subprocess.PIPE, check=False)
    worker = int(main.stdout)
    for _ in range(100):
        if not psutil.pid_exists(worker):
            return
        time.sleep(0.1)
    pytest.fail(f"process {worker} goes on")


@pytest.mark.parametrize(
    ("check", "title", "kernel", "shown"),
    [
        ("sanitizers", "races: Y[0] is written by two blocks", "doubled", True),
        ("sanitizers", "races: Y[0] is written by two blocks", "another", False),
        ("sanitizers", "unwritten: Y[0] is never written", "doubled", False),
        ("sanitizers", "races: Z[0] is written by two blocks", "doubled", False),
        ("numeric", "Y is wrong", None, False),
    ],
)
def test_a_refutation_is_a_finding_about_the_property_of_the_kernel(check, title, kernel, shown):
    """A wrong value, or a race of another kernel, has another cause."""
    proof = Proof("races", "Y", "unknown")
    assert shows(Finding(check, title, kernel=kernel), proof, "doubled") == shown


def test_the_sizes_up_to_which_offsets_fit_are_named_if_they_are_small():
    def line(*subjects):
        proofs = [Proof("overflow", each, "proven") for each in subjects]
        return _table_line("copy", "", [KernelProofs("copy", "", (), tuple(proofs))])

    assert "overflow proven up to 32768 " in line(
        "int32, sizes to 1048576", "int32, sizes to 32768"
    )
    assert "overflow proven  " in line("int32, sizes to 1048576")
