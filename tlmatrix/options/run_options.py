"""The values of options that hold for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tlmatrix.options.table import options_of_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tlmatrix.options.option import Option

T = TypeVar("T")


@dataclass(frozen=True)
class RunOptions:
    """The values of options for a run: `options[SEED]`; its default if there is no value.

    `values` are plain data, by the names of options, which workers get.
    """

    values: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self.values.get(option.name, option.default)
        return value

    def updated(self, given: Mapping[str, Any]) -> RunOptions:
        """These options with the values that are given: not None."""
        names = [each.name for each in options_of_runs() if given.get(each.name) is not None]
        return RunOptions({**self.values, **{name: given[name] for name in names}})


DEFAULTS = RunOptions()
"""The default of every option."""
