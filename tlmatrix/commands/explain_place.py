"""Where the element that is explained lies: in a result as it was returned, of one rank of several.

A result of several ranks is put together of theirs. A kernel wrote what one of them returned, and
read what that one was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tlmatrix.check.gathering import Gathered
from tlmatrix.exit_codes import UsageError
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.problem.sharding.shards import Sharding
    from tlmatrix.spec.models import Spec

__all__ = ["Place", "place_of"]


@dataclass(frozen=True)
class Place:
    """An element of a result.

    `index` is its place in the whole `tensor`, `mine` that in `returned`, which is what the code
    under test returned; `given` are the inputs it was called with. On one rank of several that is
    `rank`, and `words` says whose the element is.
    """

    name: str
    index: tuple[int, ...]
    mine: tuple[int, ...]
    returned: torch.Tensor
    given: Mapping[str, torch.Tensor]
    rank: int | None = None
    words: str = ""
    _problem: Problem | None = field(default=None, repr=False)
    _sharding: Sharding | None = field(default=None, repr=False)

    def in_whole(self, name: str) -> torch.Tensor | None:
        """Where each element of an input that was given lies in the whole one; None: alike."""
        if self._sharding is None or name not in self._sharding.splits:
            return None
        import torch

        assert self._problem is not None
        assert self.rank is not None
        whole = self._problem.inputs[name]
        numbers = torch.arange(whole.numel()).view(whole.shape)
        return self._sharding.splits[name].of(numbers, self.rank).flatten()


def place_of(
    spec: Spec,
    problem: Problem,
    outputs: Tensors,
    name: str,
    index: tuple[int, ...],
    rank: int | None,
) -> Place:
    """The place of an element `index` of the whole result `name`, on `rank` if one is asked for.

    Raises:
        UsageError: that rank has no such element, or there is one rank alone.
    """
    if not isinstance(outputs, Gathered):
        if rank is not None:
            raise UsageError(f"--rank: {spec.name} has no axis world: one rank runs its entry")
        return Place(name, index, index, outputs[name], problem.inputs)
    from tlmatrix.problem.sharding.shards import Sharding

    sharding = Sharding.of(spec, problem)
    world = sharding.world
    if rank is not None and not 0 <= rank < world:
        raise UsageError(f"--rank: there is no rank {rank}: the case has ranks 0 to {world - 1}")
    split = sharding.splits.get(name)
    if split is None:
        owner, mine = rank or 0, index
        each = "a term of it" if name in sharding.summed else "it whole"
        others = f"; every rank returns {each}, --rank takes another" if world > 1 else ""
    else:
        owner, mine = split.place(index)
        others = ""
        if rank not in (None, owner):
            raise UsageError(f"--rank: {name}{list(index)} is an element of rank {owner}")
    returned = outputs.returned[owner][name]
    words = (
        f"{ranks_words([owner], world)}, as {name}{list(mine)} of {list(returned.shape)}{others}"
    )
    given = outputs.given[owner]
    return Place(name, index, mine, returned, given, owner, words, problem, sharding)
