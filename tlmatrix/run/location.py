"""The element of a finding: the calls that lead to it, and where it is in the results of a rank."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from tlmatrix.check.finding import tensor_index
from tlmatrix.check.relations import consecutive_calls
from tlmatrix.distributed.entry import Gathered
from tlmatrix.exit_codes import UsageError
from tlmatrix.problem.sharding import Sharding
from tlmatrix.words import ranks_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tlmatrix.check.finding import Finding
    from tlmatrix.problem import Problem, Tensors
    from tlmatrix.spec.model.spec import Spec


@dataclass(frozen=True)
class Target:
    """An element of the results of the last of `calls`; of the first call if these are empty.

    `index` is None if nothing selects it. `kind` is the check whose finding it is, and `words` are
    the arguments of its call.
    """

    name: str
    index: tuple[int, ...] | None
    calls: tuple[Problem, ...] = ()
    kind: str = ""
    words: str = ""


def target_of(finding: Finding, problem: Problem) -> Target | None:
    """The worst element of a finding about the case `problem`; None if it has none."""
    info, compared = problem.outputs.get(str(finding.tensor)), finding.compared
    if info is None:
        return None
    if compared is not None and compared.element is not None:
        element = compared.element
        calls = compared.calls[: element.call + 1]
        return Target(element.name, element.index, calls, finding.check, finding.call or "")
    index = tensor_index(info, finding)
    return None if index is None else Target(info.name, index)


@dataclass(frozen=True)
class Calls:
    """Makes the calls of a finding again, in the same order and memory.

    Attributes:
        run: calls the code under test.
        first: the problem of the case.
        others: the later calls; the last of all calls is explained.
        kind: the check of the finding.
    """

    run: Callable[[Problem], Tensors]
    first: Problem
    others: Sequence[Problem]
    kind: str

    def made(self, last: Problem | None = None) -> tuple[Problem, Tensors]:
        """The problem of the last call as the entry got it, and its results.

        `last` replaces that problem.
        """
        calls = [self.first, *self.others]
        if last is not None:
            calls[-1] = replace(
                last, autograd=calls[-1].autograd, side_stream=calls[-1].side_stream
            )
        problem = calls[0]
        results = self.run(problem)
        for problem in consecutive_calls(self.kind, calls[1:]):
            results = self.run(problem)
        return problem, results


@dataclass(frozen=True)
class Location:
    """An element of a result.

    Attributes:
        name: the result.
        index: the element's index in the whole result.
        mine: its index in `returned`.
        returned: the tensor that the code under test returned, on `rank` if there are several.
        given: the inputs of that call.
        rank: the rank, None if there is only one.
        words: the rank and the index on it, for output.
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
        """The indices of a rank's input in the whole one, flat; None if they are the same."""
        if self._sharding is None or name not in self._sharding.splits:
            return None
        assert self._problem is not None
        assert self.rank is not None
        whole = self._problem.inputs[name]
        numbers = torch.arange(whole.numel()).view(whole.shape)
        return self._sharding.splits[name].of(numbers, self.rank).flatten()


def locate(
    spec: Spec,
    problem: Problem,
    outputs: Tensors,
    name: str,
    index: tuple[int, ...],
    rank: int | None,
) -> Location:
    """Locate the element `index` of the whole result `name`, on `rank` if it is not None.

    Raises:
        UsageError: the rank does not have the element, or the spec has no ranks.
    """
    if not isinstance(outputs, Gathered):
        if rank is not None:
            raise UsageError(f"--rank: {spec.name} has no axis world: one rank runs its entry")
        return Location(name, index, index, outputs[name], problem.inputs)
    sharding = Sharding.of(spec, problem)
    world = sharding.world
    if rank is not None and not 0 <= rank < world:
        raise UsageError(f"--rank {rank}: no such rank; the case has ranks 0 to {world - 1}")
    split = sharding.splits.get(name)
    if split is None:
        owner, mine = rank or 0, index
        each = "a term of it" if name in sharding.summed else "all of it"
        others = f"; every rank returns {each}, --rank selects another" if world > 1 else ""
    else:
        owner, mine = split.locate(index)
        others = ""
        if rank not in (None, owner):
            raise UsageError(f"--rank {rank}: {name}{list(index)} is an element of rank {owner}")
    returned = outputs.returned[owner][name]
    words = (
        f"{ranks_words([owner], world)}, as {name}{list(mine)} of {list(returned.shape)}{others}"
    )
    given = outputs.given[owner]
    return Location(name, index, mine, returned, given, owner, words, problem, sharding)
