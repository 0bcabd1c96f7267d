"""`interpret()`: the context in which kernels run on the CPU, and kernels made without a jit."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tlmatrix.interpreter.explain import LaunchLog
from tlmatrix.interpreter.recorder import Recorder
from tlmatrix.interpreter.reports import declared_sequences, sanitizer_names

from .intercept import entry_points
from .session import Session, current, local

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import torch

    from tlmatrix.interpreter.explain import Trace
    from tlmatrix.interpreter.reports import Sequences

    from .tracing import TracedKernel


@contextmanager
def interpret(
    *,
    arch: str = "sm_90a",
    sanitize: bool | str | Collection[str] | None = None,
    on_report: Literal["collect", "keep", "raise"] = "collect",
    sequences: Mapping[str, Any] | Callable[[str, torch.Tensor], Sequences | None] | None = None,
    partial: Collection[str] = (),
    poison: Mapping[torch.dtype, int] | None = None,
    tf32: bool | None = None,
    coverage: bool | Recorder | None = None,
    trace: Trace | bool = False,
    launched: list[TracedKernel] | None = None,
) -> Iterator[Session]:
    """Run every TileLang kernel called inside on the CPU, with no GPU and no change to its code.

    Lazy factories return an `InterpretedKernel`, eager kernels run at once,
    `tilelang.compile` gives an `InterpretedKernel`. Tensors must be on the CPU. Contexts nest;
    only the thread that entered is concerned.

        with interpret(sanitize=True) as run:
            op(...)
        for report in run.reports:
            print(report)

    Args:
        arch: the CUDA architecture kernels are traced for.
        sanitize: True for the default sanitizers, or the names of those wanted (`SANITIZERS`
            lists them); None for what the enclosing context has, or none.
        on_report: whether findings are collected in `reports` of what the context gives ("keep",
            or "collect" to have them logged too, as warnings of the logger
            `tlmatrix.interpreter`), or raised as `SanitizerError` when their kernel ends.
        sequences: for packed parameters by name their boundaries (cu_seqlens), a pair of
            boundaries and the dimension of the rows, or `Sequences`; or a function that gives
            `Sequences` or None for a parameter's name and tensor.
        partial: names of parameters that kernels may leave unwritten in part.
        poison: the bits, as an integer of its size, with which the caller has filled what is
            not written, by dtype. Elements that hold them count as unwritten, in whatever a
            kernel is passed, and all others as written.
        tf32: whether `T.gemm` cuts float32 factors to TF32, as tensor cores do; None for what
            the enclosing context has, or not.
        coverage: whether to count which lines and guards of kernels are exercised, in
            `coverage` of what the context gives; None for what the enclosing context does, to
            which what is counted here is added. Several contexts count together in a `Recorder`.
        trace: an element to follow in every kernel that writes it, with its explanations in
            `traces` of what the context gives; True keeps the launches (and so their tensors),
            for `explain` of what the context gives.
        launched: a list to which kernels are added that are traced and not run, see `traced`.

    Raises:
        ValueError: for a sanitizer that does not exist, or sequences that are none.
    """
    if on_report not in ("collect", "keep", "raise"):
        raise ValueError(f'on_report must be "collect", "keep" or "raise", got {on_report!r}')
    outer = current()
    if sanitize is None and outer is not None:
        session = replace(outer, arch=arch)
    else:
        session = Session(
            arch=arch,
            sanitizers=sanitizer_names(sanitize or False),
            on_report=on_report,
            sequences=declared_sequences(sequences),
            partial=frozenset(partial),
            poison=dict(poison or {}),
            tf32=outer.tf32 if outer is not None else False,
            recorder=outer.recorder if outer is not None else None,
        )
    if tf32 is not None:
        session.tf32 = tf32
    if isinstance(coverage, Recorder):
        session.recorder = coverage
    elif coverage is not None:
        session.recorder = Recorder() if coverage else None
    if trace:
        session = replace(session, trace=trace, traces=[], untraced={}, log=LaunchLog())
    if launched is not None:
        session.launched = launched
    with entry_points():
        local.stack.append(session)
        try:
            yield session
        finally:
            local.stack.pop()
            if coverage is True and outer is not None and outer.recorder is not None:
                outer.recorder.add(session.coverage)


@contextmanager
def traced(*, arch: str) -> Iterator[list[TracedKernel]]:
    """Trace every TileLang kernel called inside for an architecture, and run none.

    Gives the list to which each kernel is added when it is first launched.
    """
    launched: list[TracedKernel] = []
    with interpret(arch=arch, launched=launched):
        yield launched
