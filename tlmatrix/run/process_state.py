"""Settings of the process that a call must leave as they were: compared, and restored.

Later cases of the process would run under what a call leaves behind: another default dtype,
another working directory, functions of PyTorch that were replaced.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from tlmatrix.check.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)
_OF_COMPILERS = (b"TRITON_CACHE_DIR", b"TORCHINDUCTOR_CACHE_DIR")
"""Environment variables that torch.compile sets."""
_TORCH = str(Path(torch.__file__).parent)
_MISSING = object()
_HINT = (
    "later calls of this process would run under it, so it was restored: restore it before the "
    "call returns, also if it raises, or set it once, when the module is imported"
)


@dataclass(frozen=True)
class _Setting:
    """A setting, how it is read and restored, and what a finding says of a change."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], object]
    words: Callable[[Any, Any], str] = lambda before, after: f"from {before} to {after}"
    by_imports: bool = False
    """Whether modules change it when they are imported, also inside of a call."""


def _differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[Any]:
    names = dict.fromkeys((*before, *after))
    return [n for n in names if before.get(n, _MISSING) != after.get(n, _MISSING)]


def _names(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """The names of the items that differ; not their values, which may be secrets."""
    found = _differing(before, after)
    return ", ".join(sorted(os.fsdecode(getattr(each, "name", each)) for each in found))


def _added(before: list[Any], after: list[Any]) -> str:
    return f"from {len(before)} to {len(after)} entries"


def _device() -> torch.device | None:
    """The default device; None if it is not set, for which PyTorch says cpu."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # noqa: SLF001 - fast
    return None if context is None else context.device


def _deterministic() -> tuple[bool, bool]:
    """Whether algorithms must be deterministic, and whether others only warn."""
    enabled = torch.are_deterministic_algorithms_enabled()
    return enabled, torch.is_deterministic_algorithms_warn_only_enabled()


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - fast
    except OSError:
        return "a removed folder"


def _change_folder(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _environment() -> dict[Any, Any]:
    variables: dict[Any, Any] = os.environ._data.copy()  # type: ignore[attr-defined]  # noqa: SLF001 - fast
    for name in _OF_COMPILERS:
        variables.pop(name, None)
    return variables


def _restore_environment(before: Mapping[Any, Any]) -> None:
    for name in _differing(before, _environment()):
        if name in before:
            os.environb[name] = before[name]
        else:
            os.environb.pop(name)


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _restore_handlers(before: Mapping[signal.Signals, Any]) -> None:
    with suppress(ValueError, TypeError):  # not of the main thread, not set by Python
        for number in _differing(before, _handlers()):
            signal.signal(number, before[number])


def _restore_path(before: list[str]) -> None:
    sys.path[:] = before


def _restore_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001 - as catch_warnings does


_SETTINGS = (
    _Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting("the default device", _device, torch.set_default_device),
    _Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting(
        "deterministic algorithms",
        _deterministic,
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    ),
    _Setting("anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _Setting("the working directory", _folder, _change_folder),
    _Setting("environment variables", _environment, _restore_environment, _names, by_imports=True),
    _Setting("sys.path", lambda: list(sys.path), _restore_path, _added, by_imports=True),
    _Setting(
        "warnings filters",
        lambda: list(warnings.filters),
        _restore_filters,
        _added,
        by_imports=True,
    ),
    _Setting("signal handlers", _handlers, _restore_handlers, _names, by_imports=True),
)


class StateGuard:
    """Restores what the code inside changed, and keeps a finding for each setting.

    A setting that a package changes when it is imported inside (environment variables, paths,
    filters, handlers, functions of PyTorch) keeps its change: the package relies on it.
    """

    def __init__(self, actor: str, found: list[Finding], *, patches: bool = False) -> None:
        """Compare nothing yet.

        Args:
            actor: the subject of findings, such as `the entry`.
            found: gets the findings; one for each setting that it has none of.
            patches: whether functions of PyTorch are compared too, in a tenth of a millisecond.
        """
        self._actor = actor
        self._patches = patches
        self._findings = found

    def __enter__(self) -> Self:
        self._before = [setting.read() for setting in _SETTINGS]
        self._modules = len(sys.modules)
        self._functions = [vars(owner).copy() for owner in _owners()] if self._patches else []
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        imports = self._imported()
        for setting, before in zip(_SETTINGS, self._before, strict=True):
            after = setting.read()
            if after == before or (imports and setting.by_imports):
                continue
            setting.restore(before)
            self._add(setting.name, setting.words(before, after))
        if self._functions and not imports:
            for owner, functions in zip(_owners(), self._functions, strict=True):
                replaced = list(_replaced(owner, functions))
                if replaced:
                    names = ", ".join(f"{owner.__name__}.{name}" for name in replaced)
                    self._add("functions of PyTorch", names)

    def _add(self, name: str, words: str) -> None:
        title = f"{self._actor} changed {name} ({words}) and did not restore {_it(name)}"
        if all(each.pattern != name for each in self._findings):
            self._findings.append(Finding("guards", title, hint=_HINT, pattern=name))

    def _imported(self) -> bool:
        """Whether a package was imported that is not part of Python, PyTorch or this project."""
        if len(sys.modules) == self._modules:
            return False
        names = list(sys.modules)
        known = {name.partition(".")[0] for name in names[: self._modules]}
        new = {name.partition(".")[0] for name in names[self._modules :]}
        return bool(new - known - sys.stdlib_module_names)


def _it(name: str) -> str:
    return "them" if name.endswith("s") and not name.startswith("the ") else "it"


def _owners() -> tuple[Any, ...]:
    """The modules and classes whose functions are compared."""
    nn = torch.nn
    return (
        torch,
        nn,
        nn.functional,
        nn.Module,
        torch.autograd,
        torch.linalg,
        torch.cuda,
        torch.Tensor,
    )


def _replaced(owner: Any, before: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401 - a module
    """Restore the functions and classes that were replaced; their names.

    A method of a base class is replaced by a new attribute of the class. PyTorch itself replaces
    some of its functions, such as `torch.manual_seed` when its compiler is imported.
    """
    now = vars(owner)
    if len(now) == len(before) and all(map(operator.is_, now.values(), before.values())):
        return
    for name in list(now if isinstance(owner, type) else before):
        old, new = before.get(name, _MISSING), now.get(name, _MISSING)
        if old is new or name.startswith("_") or _of_torch(new):
            continue
        if old is _MISSING:
            delattr(owner, name)
        elif callable(old):
            setattr(owner, name, old)
        else:
            continue
        yield name


def _of_torch(function: Any) -> bool:  # noqa: ANN401 - any object
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCH)
