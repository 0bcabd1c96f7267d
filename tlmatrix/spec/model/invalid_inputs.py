"""The key `invalid_inputs`: settings for which the entry must raise, and words of the message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from tlmatrix.spec.model.fields import EXCEPTION, AxisValue, Model

if TYPE_CHECKING:
    from tlmatrix.spec.values import Value

TENSOR_KEYS = frozenset({"value", "dtype", "shape", "device"})
"""Keys of a setting that changes properties of a tensor."""


def _without_dots(settings: dict[str, Value]) -> dict[str, Value]:
    for name in settings:
        argument, dot, part = name.partition(".")
        if dot:
            raise ValueError(f"has the key {name!r}; write {argument}: {{{part}: …}}")
    return settings


def _as_list(value: object) -> object:
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be settings (a mapping), or a list of them")
    return value


def _not_empty(message: str) -> str:
    if not message:
        raise ValueError("must not be empty")
    return message


_SETTINGS_SCHEMA = {"title": "a mapping of settings", "type": "object", "minProperties": 1}
_Settings = Annotated[dict[str, AxisValue], Field(min_length=1), AfterValidator(_without_dots)]
_SettingsList = Annotated[
    tuple[_Settings, ...],
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                _SETTINGS_SCHEMA,
                {"type": "array", "items": _SETTINGS_SCHEMA, "minItems": 1},
            ],
        }
    ),
]
_Message = Annotated[str, AfterValidator(_not_empty)]


class InvalidInputs(Model):
    """A table of invalid inputs: words of the message, and settings for which it is raised.

    Without the key `messages` the mapping itself is the table, and the exception is ValueError.
    """

    raises: Annotated[str, Field(pattern=EXCEPTION)] = "ValueError"
    messages: dict[_Message, _SettingsList] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_messages(cls, value: object) -> object:
        if isinstance(value, dict) and "messages" not in value:
            return {"messages": value}
        return value

    @classmethod
    def short_schema(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of the table alone."""
        return {
            "type": "object",
            "minProperties": 1,
            "properties": {"messages": False},
            "additionalProperties": keys["messages"]["additionalProperties"],
        }


@dataclass(frozen=True)
class InvalidInput:
    """One invalid input of a spec.

    `settings` has parts of tensors under dotted names (`k.dtype`); `path` leads to them in the
    spec.
    """

    settings: Mapping[str, Value]
    raises: str
    message: str
    path: tuple[str | int, ...]


def tables_of(value: object) -> object:
    """A table alone is short for a list with that table."""
    return [value] if isinstance(value, Mapping) else value


def invalid_inputs_of(tables: Iterable[InvalidInputs]) -> Iterator[InvalidInput]:
    """Every invalid input of the tables under `invalid_inputs`, in their order."""
    for number, table in enumerate(tables):
        for words, several in table.messages.items():
            for index, settings in enumerate(several):
                last = list(settings)[-1]
                message = last + words[1:] if words.startswith("_ ") else words
                path = ("invalid_inputs", number, "messages", words, index)
                yield InvalidInput(_flat(settings), table.raises, message, path)


def _flat(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Settings with parts of tensors under dotted names: `{k: {dtype: x}}` is `{k.dtype: x}`."""
    flat: dict[str, Value] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and value.keys() <= TENSOR_KEYS:
            flat |= {
                name if part == "value" else f"{name}.{part}": each for part, each in value.items()
            }
        else:
            flat[name] = value
    return flat
