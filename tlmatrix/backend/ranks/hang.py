"""What is told of a rank that does not come back, or whose process ended."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.check.gathering import CHECK
from tlmatrix.tracebacks import is_ours, short_path
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["hang", "lost"]

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_MOST = 4
"""Frames that are told of one rank."""
_SIMULATED = "`--backend interpreter` runs the case on simulated ranks and says who waits for what"
_LINES = 8
"""Last lines of a process that ended."""


def hang(
    world: int, returned: Collection[int], stacks: Mapping[int, str], seconds: float
) -> FindingsError:
    """The error of ranks that are not back after `seconds`; `stacks` are as faulthandler has them.

    `returned` are the ranks that are.
    """
    late = sorted(stacks)
    places = {rank: _place(stacks[rank]) for rank in late}
    title = f"{ranks_words(late, world)} did not come back within {seconds:g} s"
    lines = [f"rank {rank} is {places[rank]}" for rank in late]
    lines += [f"rank {rank} returned" for rank in sorted(returned)]
    odd = _odd_one(places)
    hint = "a wait for what no rank sends, or a collective that not every rank calls"
    if returned:
        hint = (
            f"{ranks_words(sorted(returned), world)} did not wait for the others: a collective, a "
            "barrier or a signal that not every rank calls"
        )
    elif allocating := [rank for rank in late if _allocates(stacks[rank])]:
        hint = (
            f"{ranks_words(allocating, world)} in `rendezvous` of symmetric memory: not every rank "
            "calls it, or a GPU waits for a signal that came before a stream had zeroed the memory "
            "and was lost: torch.cuda.synchronize() between `empty` and `rendezvous`"
        )
    elif odd is not None:
        hint = f"rank {odd} is elsewhere than all others, who may wait for it"
    elif all(map(_waits_for_gpu, stacks.values())):
        hint = (
            "on their GPUs, a flag that no rank raises; or other processes keep the GPUs busy "
            "(`nvidia-smi`), so that ranks wait for their turns: `--timeout SECONDS` gives more"
        )
    if world > 1:
        hint += f"; {_SIMULATED}"
    finding = Finding(CHECK, title, pattern="hang", hint=hint, detail="\n".join(lines), where=None)
    return FindingsError([finding])


def _odd_one(places: Mapping[int, str]) -> int | None:
    """The one rank that is somewhere else than all others, of three or more."""
    for rank, place in places.items():
        others = {other for each, other in places.items() if each != rank}
        if len(places) > 2 and len(others) == 1 and place not in others:
            return rank
    return None


def _frames(stack: str) -> list[re.Match[str]]:
    """Those of the main thread, innermost first."""
    main = stack.rsplit("most recent call first):", maxsplit=1)[-1]
    return [match for line in main.splitlines() if (match := _FRAME.match(line))]


def _waits_for_gpu(stack: str) -> bool:
    """Whether the main thread waits until its GPU has done all that was enqueued."""
    frames = _frames(stack)
    return bool(frames) and "/torch/cuda/" in frames[0]["file"]


def _allocates(stack: str) -> bool:
    """Whether the main thread makes symmetric memory that all ranks reach."""
    frames = _frames(stack)
    return bool(frames) and frames[0]["function"] == "rendezvous"


def _place(stack: str) -> str:
    """Where the main thread is: the user's frames, innermost first, in a line each."""
    frames = _frames(stack)
    if not frames:
        return "in code that shows no Python frame"
    own = [frame for frame in frames if not is_ours(frame["file"])]
    told = [
        f"at {short_path(frame['file'])}:{frame['line']} in {frame['function']}"
        for frame in (own or frames)[:_MOST]
    ]
    inner = frames[0]
    if own and inner is not own[0]:
        name = inner["file"].rpartition("site-packages/")[2]
        told[0] += f" (in {inner['function']}, {name}:{inner['line']})"
    return "\n    called ".join(told)


def lost(rank: int, world: int, status: int | None, output: str) -> FindingsError:
    """The error of a rank whose process ended with `status`; `output` is what it wrote."""
    ended = "ended"
    if status is not None and status < 0:
        ended = f"was ended by {signal.Signals(-status).name}"
    elif status:
        ended = f"ended with status {status}"
    lines = [line for line in output.strip().splitlines() if line.strip()][-_LINES:]
    return FindingsError(
        [
            Finding(
                CHECK,
                f"{ranks_words([rank], world)}: its process {ended}",
                pattern="process ended",
                hint="an exit, a crash of native code, or too little memory; its last lines follow"
                if lines
                else "an exit, a crash of native code, or too little memory",
                detail="\n".join(lines) or None,
            )
        ]
    )
