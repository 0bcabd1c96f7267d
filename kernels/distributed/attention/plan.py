"""The plan of one call on one rank: which keys it fetches, and which queries attend to them when.

Plans only depend on lengths and are the same on every rank, so that a rank knows what the others
fetch from it. Terms:

========  =====================================================================================
run       the queries of one chunk that the rank owns: consecutive positions
step      keys of some ranks that are processed together: first the local, then fetched ones
segment   a chunk of keys in the buffer of its step
range     consecutive rows of that buffer, of which a run attends to those up to an offset
launch    at most one range per run: one kernel
========  =====================================================================================

Causal attention is aligned bottom-right over the whole sequence: query i attends to the keys
``j <= i + seqlen_k - seqlen_q``. Of a range that starts at row r, query i of its run attends to
rows r + j with ``j <= i + offset``. A tile of queries thus belongs to one run and a tile of keys to
one range, however short the chunks, and neither spans two shards.

The buffer of a step holds one sequence after another, and within a sequence the chunks in order of
position, from all owners. Chunks that no query of the rank attends to are not fetched. What a run
sees of a sequence is mostly one range: whole chunks, and a last one with the causal diagonal.

If one kernel processes the local keys and the remote ones as they arrive (`Plan.in_one_launch`),
all remote keys are visible, and they are in the best fetch order: first those visible to every run,
then the others, each by owner from rank - 1 backwards, so that ranks do not all pull from the same
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tlmatrix_kernels.distributed.attention.shards import Chunk, Sharding


@dataclass(frozen=True)
class Segment:
    """A chunk of one sequence's keys in the buffer of a step.

    ``source`` is its row in the owner's shard, ``row`` its row in the buffer.
    """

    owner: int
    sequence: int
    chunk: int
    position: int
    source: int
    row: int
    length: int


@dataclass(frozen=True)
class Range:
    """Keys of a step visible to query i of a run: row + j, 0 <= j < length, ``j <= i + offset``.

    An offset of ``length - 1`` or more masks nothing.
    """

    run: int
    row: int
    length: int
    offset: int

    @property
    def whole(self) -> bool:
        """Whether every query of the run attends to every key."""
        return self.offset >= self.length - 1


@dataclass(frozen=True)
class Launch:
    """One kernel: its ranges in block order, at most one per run."""

    ranges: tuple[Range, ...]

    @property
    def causal(self) -> bool:
        """Whether some range has a masked pair."""
        return not all(each.whole for each in self.ranges)

    @property
    def longest(self) -> int:
        """The number of keys of the longest range."""
        return max((each.length for each in self.ranges), default=0)


@dataclass(frozen=True)
class Step:
    """Keys that are processed together.

    ``rows`` is the size of their buffer. Step 0 uses the rank's own k and v; the others are
    fetched.
    """

    ranks: tuple[int, ...]
    segments: tuple[Segment, ...]
    rows: int
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Plan:
    """The plan of one rank.

    ``runs`` are (first row, length) of its queries, in order: one run per local chunk of each
    sequence, or one per sequence if attention is not causal.
    """

    rank: int
    sharding: Sharding
    rows_q: int
    rows_k: int
    runs: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]

    @property
    def longest_run(self) -> int:
        """The number of queries of the longest run."""
        return max((length for _, length in self.runs), default=0)

    @property
    def in_one_launch(self) -> bool:
        """Whether one kernel can process local keys and then remote ones as they arrive.

        Each run must have at most one range of both: the remote range without a mask; and if
        attention is causal, the local range with a diagonal that ends within it, or no local keys.
        """
        if len(self.steps) != 2 or any(len(step.launches) > 1 for step in self.steps):
            return False
        own, others = ([each for launch in step.launches for each in launch.ranges]
                       for step in self.steps)  # fmt: skip
        causal = any(launch.causal for step in self.steps for launch in step.launches)
        within = all(each.offset + self.runs[each.run][1] <= each.length for each in own)
        return all(each.whole for each in others) and (within or not causal)

    @property
    def fetched(self) -> int:
        """The number of fetched rows of all steps."""
        return sum(step.rows for step in self.steps[1:])

    def first_row(self, step: int) -> int:
        """The first row of a step's buffer among all fetched rows."""
        return sum(each.rows for each in self.steps[1:step])


def copies(step: Step) -> list[tuple[int, int, int, int]]:
    """The copies to the buffer of a step: (owner, row of the owner, row of the step, rows).

    In rank order of the step; segments that are adjacent in both buffers are merged.
    """
    found: list[tuple[int, int, int, int]] = []
    order = {rank: place for place, rank in enumerate(step.ranks)}
    for segment in sorted(
        step.segments, key=lambda segment: (order[segment.owner], segment.source)
    ):
        if found:
            owner, source, row, rows = found[-1]
            if (owner, source + rows, row + rows) == (segment.owner, segment.source, segment.row):
                found[-1] = (owner, source, row, rows + segment.length)
                continue
        found.append((segment.owner, segment.source, segment.row, segment.length))
    return found


def slices(step: Step, rows: int) -> list[list[tuple[int, int, int, int]]]:
    """The `copies` of a step in buffer order, cut into slices of `rows` rows."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in range(-(-step.rows // rows))]
    for owner, source, row, count in sorted(copies(step), key=lambda copy: copy[2]):
        begin = row
        while begin < row + count:
            end = min(row + count, (begin // rows + 1) * rows)
            found[begin // rows].append((owner, source + begin - row, begin, end - begin))
            begin = end
    return found


def rank_groups(rank: int, world: int, steps: int) -> tuple[tuple[int, ...], ...]:
    """The ranks of each step: the rank itself, then the others in `steps - 1` groups.

    The others are in the order rank + 1, rank + 2, ... (modulo world), so that all ranks start with
    a different peer. Group sizes differ by at most one, and the first groups, which everything
    waits for, are the smaller ones. With one step, all ranks form one group.
    """
    others = [(rank + distance) % world for distance in range(1, world)]
    if steps == 1:
        return ((rank, *others),)
    groups, begin = [(rank,)], 0
    count = min(steps - 1, len(others))
    for group in range(count):
        end = len(others) * (group + 1) // count
        groups.append(tuple(others[begin:end]))
        begin = end
    return tuple(groups)


@dataclass(frozen=True)
class _Run:
    """A run: position of its first query, and the last keys visible to its first and last query."""

    index: int
    position: int
    length: int
    first: int
    last: int


def _offset(run: _Run, segment: Segment) -> int | None:
    """The offset of a segment by itself; None if the run attends to none of its keys."""
    if not run.length or not segment.length or segment.position > run.last:
        return None
    return min(run.first - segment.position, segment.length)


def _ranges(run: _Run, segments: Sequence[Segment]) -> list[Range]:
    """The ranges of a run in segments that are consecutive in memory and ascending in position."""
    found: list[Range] = []
    for segment in segments:
        offset = _offset(run, segment)
        if offset is None:
            continue
        alone = Range(run.index, segment.row, segment.length, offset)
        joined = _join(found[-1], alone) if found else None
        if joined is None:
            found.append(alone)
        else:
            found[-1] = joined
    return found


def _join(before: Range, after: Range) -> Range | None:
    """The union as one range, if one offset describes both; else None."""
    if before.row + before.length != after.row:
        return None
    length = before.length + after.length
    offset = before.length + after.offset
    if before.whole:  # the joint offset must not mask any of it
        return Range(before.run, before.row, length, offset) if after.offset >= -1 else None
    return Range(before.run, before.row, length, offset) if offset == before.offset else None


def _launches(ranges: Sequence[Sequence[Range]]) -> tuple[Launch, ...]:
    """The n-th range of every run in launch n; those with the most keys first."""
    count = max(map(len, ranges), default=0)
    found = []
    for place in range(count):
        here = [of_run[place] for of_run in ranges if len(of_run) > place]
        found.append(Launch(tuple(sorted(here, key=lambda each: -each.length))))
    return tuple(found)


def _runs(
    sharding: Sharding, rank: int, lengths_q: Sequence[int], lengths_k: Sequence[int], causal: bool
) -> tuple[list[tuple[int, int]], list[list[_Run]]]:
    """The runs of the rank as (row, length), and the `_Run`s of each sequence."""
    rows: list[tuple[int, int]] = []
    seen: list[list[_Run]] = []
    shard = sharding.shard(lengths_q, rank)
    for chunks, length_q, length_k in zip(shard, lengths_q, lengths_k, strict=True):
        here = []
        if not causal:
            total = sum(chunk.length for chunk in chunks)
            chunks = [Chunk(chunks[0].index, 0, chunks[0].row, total)]  # noqa: PLW2901
        for chunk in chunks:
            first = chunk.position + length_k - length_q if causal else length_k
            last = first + chunk.length - 1 if causal else length_k
            here.append(_Run(len(rows), chunk.position, chunk.length, first, last))
            rows.append((chunk.row, chunk.length))
        seen.append(here)
    return rows, seen


def _visible_to(segment: Segment, runs: Sequence[_Run]) -> int:
    """The number of runs that attend to keys of a segment."""
    return sum(_offset(run, segment) is not None for run in runs)


def _segments(
    sharding: Sharding,
    ranks: Sequence[int],
    lengths_k: Sequence[int],
    seen: list[list[_Run]] | None,
    nearest_to: int | None = None,
) -> tuple[list[list[Segment]], int]:
    """The segments of the ranks for each sequence, and their total number of rows.

    Only visible ones if `seen` is given. In order of position; or, given `nearest_to`, in the best
    fetch order for that rank.
    """
    shards = {owner: sharding.shard(lengths_k, owner) for owner in ranks}
    found, row = [], 0
    for sequence in range(len(lengths_k)):
        segments = [
            Segment(owner, sequence, chunk.index, chunk.position, chunk.row, 0, chunk.length)
            for owner in ranks
            for chunk in shards[owner][sequence]
        ]
        order = {segment: (segment.chunk,) for segment in segments}
        if seen is not None:
            visible_to = {segment: _visible_to(segment, seen[sequence]) for segment in segments}
            segments = [segment for segment in segments if visible_to[segment]]
            if nearest_to is not None:
                order = {
                    segment: (-count, (nearest_to - segment.owner) % sharding.world, segment.chunk)
                    for segment, count in visible_to.items()
                }
        here = []
        for segment in sorted(segments, key=order.__getitem__):
            here.append(replace(segment, row=row))
            row += segment.length
        found.append(here)
    return found, row


@lru_cache(maxsize=256)
def plan_for(
    sharding: Sharding,
    rank: int,
    lengths_q: tuple[int, ...],
    lengths_k: tuple[int, ...],
    causal: bool,
    steps: int,
) -> Plan:
    """The plan of `rank` for whole sequences of these lengths, in `steps` steps.

    With one step, all keys including the rank's own are fetched and processed at once; with two or
    more, step 0 uses the rank's own k and v in place.
    """
    rows, seen = _runs(sharding, rank, lengths_q, lengths_k, causal)

    def planned(nearest_to: int | None = None) -> Plan:
        return Plan(
            rank=rank,
            sharding=sharding,
            rows_q=sharding.total(lengths_q, rank),
            rows_k=sharding.total(lengths_k, rank),
            runs=tuple(rows),
            steps=_steps(sharding, rank, lengths_k, seen, steps, nearest_to),
        )

    if steps == 2:
        plan = planned(nearest_to=rank)
        if plan.in_one_launch:
            return plan
    return planned()


def _steps(
    sharding: Sharding,
    rank: int,
    lengths_k: Sequence[int],
    seen: list[list[_Run]],
    count: int,
    nearest_to: int | None,
) -> tuple[Step, ...]:
    """The steps of a plan; `nearest_to` as in `_segments`, for the fetched ones."""
    found = []
    groups = rank_groups(rank, sharding.world, count)
    if count == 1 and sharding.world > 1:
        groups = ((), *groups)
    for place, ranks in enumerate(groups):
        only, order = (seen, nearest_to) if place else (None, None)
        segments, size = _segments(sharding, ranks, lengths_k, only, order)
        ranges = [
            _ranges(run, of_sequence)
            for runs, of_sequence in zip(seen, segments, strict=True)
            for run in runs
        ]
        found.append(
            Step(ranks, tuple(each for here in segments for each in here), size, _launches(ranges))
        )
    return tuple(found)
