"""Failures of ranks as one error: exceptions, which cross processes, hangs, and ended processes."""

from __future__ import annotations

import pickle
import re
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tlmatrix.backend.errors import EntryError
from tlmatrix.check.finding import Finding, FindingsError
from tlmatrix.spec.issues import SpecError
from tlmatrix.tracebacks import is_ours, short_path, user_traceback
from tlmatrix.words import ranks_words

CHECK = "ranks"
"""The check of findings about ranks."""

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_FRAMES = 4
"""Frames that the error shows of each rank."""
_SIMULATED = (
    "`--backend interpreter` runs the case on simulated ranks and reports what each one waits for"
)
_LINES = 8
"""Last lines of output that the error shows of a process that ended."""


@dataclass(frozen=True)
class Failure:
    """An exception of a rank, with its type, message and traceback there as text.

    `entry` is whether the code under test raised it; `when` is a time of the machine's monotonic
    clock.
    """

    error: BaseException
    kind: str
    message: str
    trace: str
    entry: bool
    when: float

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception that was just caught."""
        raised = error.error if isinstance(error, EntryError) else error
        return cls(
            raised,
            type(raised).__name__,
            str(raised),
            user_traceback(raised),
            isinstance(error, EntryError),
            time.monotonic(),
        )

    def picklable(self) -> Failure:
        """Return this failure with an exception that pickling preserves.

        An exception that cannot be pickled, or that changes by it (such as a class that computes
        its message from its arguments), is replaced by a `RuntimeError` with its type and message.
        """
        try:
            copy = pickle.loads(pickle.dumps(self.error))  # noqa: S301 - what we just wrote
            same = type(copy) is type(self.error) and str(copy) == self.message
        except Exception:  # noqa: BLE001 - anything may be in an exception
            same = False
        return self if same else replace(self, error=RuntimeError(f"{self.kind}: {self.message}"))

    @property
    def signature(self) -> tuple[str, str]:
        """Equal for the same failure on several ranks."""
        return (self.kind, self.message)


def raise_failures(failures: dict[int, Failure], world: int, others: str = "") -> None:
    """Raise the failures of ranks as one error; return if there are none.

    The error is that of the first rank to fail and of ranks with the same failure; later ones may
    be consequences. `others` describes the ranks that did not fail.

    Raises:
        EntryError: the code under test raised; `where` names the ranks.
        SpecError: the spec does not match the code that it names.
    """
    if not failures:
        return
    for failure in failures.values():
        if isinstance(failure.error, SpecError | FindingsError):
            raise failure.error
    first = min(failures.values(), key=lambda failure: failure.when)
    ranks = [rank for rank, failure in failures.items() if failure.signature == first.signature]
    if not first.entry:
        raise first.error
    notes = [
        f"rank {rank} then raised {failure.kind}: {failure.message.splitlines()[0]}"
        if failure.message
        else f"rank {rank} then raised {failure.kind}"
        for rank, failure in sorted(failures.items())
        if rank not in ranks
    ]
    notes += [others] if others and len(failures) < world else []
    where = ranks_words(ranks, world) if world > 1 else ""
    if len(ranks) == world:
        where = ""
    raise EntryError(first.error, where=where, trace=first.trace, notes=notes)


def hang_error(
    world: int, returned: Collection[int], stacks: Mapping[int, str], seconds: float
) -> FindingsError:
    """The error for ranks that did not return within `seconds`.

    Args:
        world: the number of ranks.
        returned: the ranks that did return.
        stacks: of each other rank its threads' stacks, as faulthandler prints them.
        seconds: the time limit.
    """
    late = sorted(stacks)
    locations = {rank: _location(stacks[rank]) for rank in late}
    title = f"{ranks_words(late, world)} did not come back within {seconds:g} s"
    lines = [f"rank {rank} is {locations[rank]}" for rank in late]
    lines += [f"rank {rank} returned" for rank in sorted(returned)]
    outlier = _outlier(locations)
    hint = "a wait for a signal that no rank sends, or a collective that not every rank calls"
    if returned:
        hint = (
            f"{ranks_words(sorted(returned), world)} did not wait for the others: a collective, a "
            "barrier or a signal that not every rank calls"
        )
    elif allocating := [rank for rank in late if _allocates(stacks[rank])]:
        hint = (
            f"{ranks_words(allocating, world)} in `rendezvous` of symmetric memory: not every rank "
            "calls it, or a signal arrived before a stream had zeroed the memory and was lost: "
            "call torch.cuda.synchronize() between `empty` and `rendezvous`"
        )
    elif outlier is not None:
        hint = f"rank {outlier} is in other code than all others, which may wait for it"
    elif all(map(_waits_for_gpu, stacks.values())):
        hint = (
            "a kernel waits for a flag that no rank sets; or other processes keep the GPUs busy "
            "(`nvidia-smi`): `--timeout SECONDS` sets a longer time"
        )
    if world > 1:
        hint += f"; {_SIMULATED}"
    finding = Finding(CHECK, title, pattern="hang", hint=hint, detail="\n".join(lines), where=None)
    return FindingsError([finding])


def _outlier(locations: Mapping[int, str]) -> int | None:
    """The one rank, of three or more, whose location differs from that of all others."""
    for rank, location in locations.items():
        others = {other for each, other in locations.items() if each != rank}
        if len(locations) > 2 and len(others) == 1 and location not in others:
            return rank
    return None


def _frames(stack: str) -> list[re.Match[str]]:
    """The frames of the main thread, innermost first."""
    main = stack.rsplit("most recent call first):", maxsplit=1)[-1]
    return [match for line in main.splitlines() if (match := _FRAME.match(line))]


def _waits_for_gpu(stack: str) -> bool:
    """Whether the main thread waits for its GPU."""
    frames = _frames(stack)
    return bool(frames) and "/torch/cuda/" in frames[0]["file"]


def _allocates(stack: str) -> bool:
    """Whether the main thread is in `rendezvous` of symmetric memory."""
    frames = _frames(stack)
    return bool(frames) and frames[0]["function"] == "rendezvous"


def _location(stack: str) -> str:
    """Where the main thread is: the user's frames, innermost first, one per line."""
    frames = _frames(stack)
    if not frames:
        return "in code without Python frames"
    own = [frame for frame in frames if not is_ours(frame["file"])]
    lines = [
        f"at {short_path(frame['file'])}:{frame['line']} in {frame['function']}"
        for frame in (own or frames)[:_FRAMES]
    ]
    inner = frames[0]
    if own and inner is not own[0]:
        name = inner["file"].rpartition("site-packages/")[2]
        lines[0] += f" (in {inner['function']}, {name}:{inner['line']})"
    return "\n    called ".join(lines)


def exit_error(rank: int, world: int, status: int | None, output: str) -> FindingsError:
    """The error for a rank whose process ended with `status` after printing `output`."""
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
                hint="an exit, a crash of native code, or out of memory; its last lines follow"
                if lines
                else "an exit, a crash of native code, or out of memory",
                detail="\n".join(lines) or None,
            )
        ]
    )
