"""What a rank does in one call: which keys it fetches, and which of its queries see them when.

Everything here is arithmetic on lengths, the same on every rank, so that a rank knows also what
the others fetch from it. The words:

========  =====================================================================================
run       the queries of one chunk that the rank owns: consecutive positions
step      the keys of some ranks, which are attended to at once: own ones first, fetched ones after
piece     a chunk of keys, or the first part of one, in the memory of its step
range     consecutive rows in the memory of a step, of which a run sees those up to an offset
launch    at most one range of each run: one kernel
========  =====================================================================================

Causal attention is aligned bottom-right over the whole sequence: query i sees the keys
``j <= i + seqlen_k - seqlen_q``. Of a range that begins at row r, the query at i of its run sees
row r + j where ``j <= i + offset``: so a tile of queries belongs to one run and a tile of keys to
one range, however short the chunks, and none of them straddles two shards.

The memory of a step holds sequence after sequence, and in each the chunks in the order of their
positions, whoever owns them. Chunks that no query of the rank sees are not fetched. What a run sees
of that is mostly one range: whole chunks, and a last one that the mask cuts.

Where one kernel attends to own keys and to others as they come (`Plan.in_one_launch`), no mask cuts
the others, and they lie in the order in which they are best fetched: first what every run sees, and
of each the ranks from the one before on backwards, so that no rank is asked by all at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tlmatrix_kernels.distributed.attention.shards import Chunk, Sharding

__all__ = [
    "Launch",
    "Piece",
    "Plan",
    "Range",
    "Step",
    "copies",
    "plan_for",
    "rank_groups",
    "slices",
]


@dataclass(frozen=True)
class Piece:
    """A chunk of one sequence's keys in the memory of a step.

    ``source`` is the row in the memory of its owner, ``row`` the one in the memory of the step.
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
    """What one run sees of a step: of row + j, 0 <= j < length, query i sees ``j <= i + offset``.

    An offset of ``length - 1`` or more hides nothing.
    """

    run: int
    row: int
    length: int
    offset: int

    @property
    def whole(self) -> bool:
        """Whether every query of the run sees every key."""
        return self.offset >= self.length - 1


@dataclass(frozen=True)
class Launch:
    """One kernel: the ranges in the order in which their blocks start, at most one of a run."""

    ranges: tuple[Range, ...]

    @property
    def causal(self) -> bool:
        """Whether some range hides a key from a query."""
        return not all(each.whole for each in self.ranges)

    @property
    def longest(self) -> int:
        """The keys of the longest range."""
        return max((each.length for each in self.ranges), default=0)


@dataclass(frozen=True)
class Step:
    """Keys that are attended to at once, and how.

    ``rows`` is the size of their memory; step 0 is in the rank's own k and v, all others are
    fetched.
    """

    ranks: tuple[int, ...]
    pieces: tuple[Piece, ...]
    rows: int
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Plan:
    """What a rank does.

    ``runs`` are (first row, length) of its queries, all of them in order; an own chunk of every
    sequence is one, or all own queries of a sequence where no mask tells positions apart.
    """

    rank: int
    sharding: Sharding
    rows_q: int
    rows_k: int
    runs: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]

    @property
    def longest_run(self) -> int:
        """The queries of the longest run."""
        return max((length for _, length in self.runs), default=0)

    @property
    def in_one_launch(self) -> bool:
        """Whether one kernel can begin with own keys and go on with the others as they come.

        For that each run sees one range of either: of the own keys with a mask that hides their end
        from all its queries but the last, or not one key, of the others without any.
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
        """Rows of keys that are fetched, of all steps."""
        return sum(step.rows for step in self.steps[1:])

    def first_row(self, step: int) -> int:
        """Where a step's memory begins among all that is fetched."""
        return sum(each.rows for each in self.steps[1:step])


def copies(step: Step) -> list[tuple[int, int, int, int]]:
    """What to copy to the memory of a step: (owner, row of the owner, row of the step, rows).

    In the order in which ranks are attended to; pieces that follow one another in both memories are
    one copy.
    """
    found: list[tuple[int, int, int, int]] = []
    order = {rank: place for place, rank in enumerate(step.ranks)}
    for piece in sorted(step.pieces, key=lambda piece: (order[piece.owner], piece.source)):
        if found:
            owner, source, row, rows = found[-1]
            if (owner, source + rows, row + rows) == (piece.owner, piece.source, piece.row):
                found[-1] = (owner, source, row, rows + piece.length)
                continue
        found.append((piece.owner, piece.source, piece.row, piece.length))
    return found


def slices(step: Step, rows: int) -> list[list[tuple[int, int, int, int]]]:
    """The `copies` of a step in the order of its memory, cut into slices of so many `rows`."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in range(-(-step.rows // rows))]
    for owner, source, row, count in sorted(copies(step), key=lambda copy: copy[2]):
        begin = row
        while begin < row + count:
            end = min(row + count, (begin // rows + 1) * rows)
            found[begin // rows].append((owner, source + begin - row, begin, end - begin))
            begin = end
    return found


def rank_groups(rank: int, world: int, steps: int) -> tuple[tuple[int, ...], ...]:
    """Who is attended to at once: the rank itself, then the others in `steps - 1` groups.

    The others in the order rank + 1, rank + 2, ... (modulo world), so that no two ranks begin with
    fetching from the same one; sizes differ by one at most, and the first groups, whose keys
    everything waits for, are the smaller ones. With one step everybody is attended to at once.
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
    """A run: `position` is that of its first query, `last` the key its last query sees up to."""

    index: int
    position: int
    length: int
    first: int
    last: int


def _offset(run: _Run, piece: Piece) -> int | None:
    """The offset of a piece by itself: None where the run sees nothing of it."""
    if not run.length or not piece.length or piece.position > run.last:
        return None
    return min(run.first - piece.position, piece.length)


def _ranges(run: _Run, pieces: Sequence[Piece]) -> list[Range]:
    """What the run sees of pieces that follow one another in memory, with ascending positions."""
    found: list[Range] = []
    for piece in pieces:
        offset = _offset(run, piece)
        if offset is None:
            continue
        alone = Range(run.index, piece.row, piece.length, offset)
        joined = _join(found[-1], alone) if found else None
        if joined is None:
            found.append(alone)
        else:
            found[-1] = joined
    return found


def _join(before: Range, after: Range) -> Range | None:
    """Both as one range, where a single offset says what is seen of both."""
    if before.row + before.length != after.row:
        return None
    length = before.length + after.length
    offset = before.length + after.offset
    if before.whole:  # of which the offset must hide nothing
        return Range(before.run, before.row, length, offset) if after.offset >= -1 else None
    return Range(before.run, before.row, length, offset) if offset == before.offset else None


def _launches(ranges: Sequence[Sequence[Range]]) -> tuple[Launch, ...]:
    """The n-th range of every run in one launch; those with the most keys start first."""
    count = max(map(len, ranges), default=0)
    found = []
    for place in range(count):
        here = [of_run[place] for of_run in ranges if len(of_run) > place]
        found.append(Launch(tuple(sorted(here, key=lambda each: -each.length))))
    return tuple(found)


def _runs(
    sharding: Sharding, rank: int, lengths_q: Sequence[int], lengths_k: Sequence[int], causal: bool
) -> tuple[list[tuple[int, int]], list[list[_Run]]]:
    """The runs of the rank, and for each sequence what they see."""
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


def _visible_to(piece: Piece, runs: Sequence[_Run]) -> int:
    """How many of the runs see something of a piece."""
    return sum(_offset(run, piece) is not None for run in runs)


def _pieces(
    sharding: Sharding,
    ranks: Sequence[int],
    lengths_k: Sequence[int],
    seen: list[list[_Run]] | None,
    nearest_to: int | None = None,
) -> tuple[list[list[Piece]], int]:
    """The pieces of the ranks, a list for each sequence, and how many rows they have.

    Only what is seen, if that is given. By position; or, given a rank that they come `nearest_to`,
    in the order in which it had best fetch them.
    """
    shards = {owner: sharding.shard(lengths_k, owner) for owner in ranks}
    found, row = [], 0
    for sequence in range(len(lengths_k)):
        pieces = [
            Piece(owner, sequence, chunk.index, chunk.position, chunk.row, 0, chunk.length)
            for owner in ranks
            for chunk in shards[owner][sequence]
        ]
        order = {piece: (piece.chunk,) for piece in pieces}
        if seen is not None:
            visible_to = {piece: _visible_to(piece, seen[sequence]) for piece in pieces}
            pieces = [piece for piece in pieces if visible_to[piece]]
            if nearest_to is not None:
                order = {
                    piece: (-count, (nearest_to - piece.owner) % sharding.world, piece.chunk)
                    for piece, count in visible_to.items()
                }
        here = []
        for piece in sorted(pieces, key=order.__getitem__):
            here.append(replace(piece, row=row))
            row += piece.length
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
    """What `rank` does with sequences of these lengths (of the whole batch) in `steps` steps.

    With one step everything is fetched, the rank's own keys too, and attended to at once; with two
    or more, step 0 is the rank's own k and v, where they are.
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
    """The steps of a plan; `nearest_to` as in `_pieces`, for what is fetched."""
    found = []
    groups = rank_groups(rank, sharding.world, count)
    if count == 1 and sharding.world > 1:
        groups = ((), *groups)
    for place, ranks in enumerate(groups):
        only, order = (seen, nearest_to) if place else (None, None)
        pieces, size = _pieces(sharding, ranks, lengths_k, only, order)
        ranges = [
            _ranges(run, of_sequence)
            for runs, of_sequence in zip(seen, pieces, strict=True)
            for run in runs
        ]
        found.append(
            Step(ranks, tuple(each for here in pieces for each in here), size, _launches(ranges))
        )
    return tuple(found)
