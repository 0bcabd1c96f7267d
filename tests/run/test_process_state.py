"""What an entry leaves behind in its process is a finding, and is restored."""

import os
import signal
import warnings

import pytest
import torch

from tlmatrix.matrix import expand
from tlmatrix.run import Status
from tlmatrix.run.process_state import _SETTINGS, StateGuard
from tlmatrix.run.runner import run_case
from tlmatrix.spec.loader import load_spec

_ENTRY = """\
import os
import signal
import sys
import warnings

import torch

os.environ["SET_BY_MODULE"] = "1"


def reference(x):
    return 2 * x


def entry(x):
    ADD = torch.add
    CODE
    return 2 * x
"""
_SPEC = """\
name: doubled
problem:
  inputs: {x: {shape: [n], dtype: float32}}
  outputs: [y]
  reference: MODULE:reference
entry: MODULE:entry
axes: {n: [3]}
"""


def _result(folder, code, more=""):
    module = f"left_{abs(hash((code, str(folder))))}"
    (folder / f"{module}.py").write_text(_ENTRY.replace("CODE", code))
    path = folder / "doubled.yaml"
    path.write_text(_SPEC.replace("MODULE", module) + more)
    spec = load_spec(path)
    (case,) = expand(spec, "quick")
    return run_case(spec, case, "interpreter")


@pytest.mark.parametrize(
    ("code", "words"),
    {
        "torch.set_default_dtype(torch.float64)": "the default dtype (from torch.float32 to "
        "torch.float64) and did not restore it",
        "torch.set_default_device('meta'); x = x.cpu()": "the default device (from None to meta)",
        "torch.set_default_device('cuda')": "the default device (from None to cuda)",
        "torch.set_grad_enabled(False)": "grad mode (from True to False)",
        "torch.use_deterministic_algorithms(True)": "deterministic algorithms (from (False",
        "torch.autograd.set_detect_anomaly(True)": "anomaly mode (from False to True)",
        "torch.set_num_threads(torch.get_num_threads() + 1)": "the number of threads (from ",
        "os.chdir('/')": "the working directory (from /",
        "os.environ['LEFT_HERE'] = 'secret'": "environment variables (LEFT_HERE) and did not "
        "restore them",
        "del os.environ['SET_BY_MODULE']": "environment variables (SET_BY_MODULE)",
        "sys.path.insert(0, 'elsewhere')": "sys.path (from ",
        "warnings.simplefilter('ignore')": "warnings filters (from ",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)": "signal handlers (SIGTERM)",
        "torch.add = lambda *args: ADD(*args)": "functions of PyTorch (torch.add)",
        "torch.Tensor.mul = lambda a, b: a.clone()": "functions of PyTorch (Tensor.mul)",
        "torch.nn.functional.relu = abs": "functions of PyTorch (torch.nn.functional.relu)",
        "torch.set_default_dtype(torch.float64); raise ValueError": "the default dtype",
    }.items(),
)
def test_a_change_is_a_finding_and_restored(tmp_path, code, words):
    _result(tmp_path, "pass")  # imports, which change settings
    compared = [each for each in _SETTINGS if each.name in words or not each.by_imports]
    before = [setting.read() for setting in compared]
    kept = torch.add, torch.Tensor.mul, torch.nn.functional.relu
    result = _result(tmp_path, code)
    assert [setting.read() for setting in compared] == before
    assert (torch.add, torch.Tensor.mul, torch.nn.functional.relu) == kept
    assert result.status is (Status.ERROR if "raise" in code else Status.FAILED)
    (finding,) = (each for each in result.findings if each.check == "guards")
    assert words in finding.title
    assert "secret" not in str(finding)


@pytest.mark.parametrize(
    "code",
    [
        "torch.manual_seed(0)",
        "with torch.no_grad(): x = x + 0",
        "os.environ['LEFT_HERE'] = '1'; del os.environ['LEFT_HERE']",
        "import setting_package",
        "import torch._dynamo as dynamo",
    ],
)
def test_what_is_restored_or_belongs_to_an_import_is_right(tmp_path, code):
    (tmp_path / "setting_package.py").write_text("import os\nos.environ['OF_PACKAGE'] = '1'\n")
    assert _result(tmp_path, code).status is Status.PASSED
    assert "setting" not in code or os.environ.pop("OF_PACKAGE") == "1"


def test_without_the_check_it_is_only_restored(tmp_path):
    result = _result(tmp_path, "torch.set_default_dtype(torch.float64)", "checks: [numeric]\n")
    assert result.status is Status.PASSED
    assert torch.get_default_dtype() is torch.float32


def test_nested_guards_report_once():
    inner = []
    outer = []
    with StateGuard("outer", outer, patches=True), StateGuard("inner", inner):
        warnings.simplefilter("error")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert [each.pattern for each in inner] == ["warnings filters", "signal handlers"]
    assert not outer
