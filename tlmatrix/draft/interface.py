"""The interface of the code under test, from a trace or from recorded calls."""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.calls import BY_CHANCE, Opaque, Seen
from tlmatrix.draft.sizes import Place, Relations, Size, relate
from tlmatrix.draft.uses import Selection, Uses, merged
from tlmatrix.exit_codes import UsageError
from tlmatrix.spec.model.calling import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tlmatrix.draft.calls import Call, Value
    from tlmatrix.draft.sizes import Column
    from tlmatrix.draft.targets import Target

_HALVES = ("float16", "bfloat16")
_DTYPE = re.compile(r"dtype|(^|_)(in|out|acc|accum)_?type$")
_TILE = re.compile(r"block|blk|tile|chunk|^b[mnkq]$", re.IGNORECASE)
SETTINGS = {"threads": 128, "num_threads": 128, "num_stages": 2, "stages": 2}
_ROWS: tuple[Size, ...] = ("rows", "cols")
_ENDS: tuple[Size, ...] = ("batch + 1",)
_DENSE = {
    "q": ("batch", "seqlen_q", "heads", "dim"),
    "k": ("batch", "seqlen_k", "kv_heads", "dim"),
    "v": ("batch", "seqlen_k", "kv_heads", "dim"),
    "out": ("batch", "seqlen_q", "heads", "dim"),
}
_BY_NAMES: tuple[dict[str, tuple[Size, ...]], ...] = (
    {f"cu_seqlens_{side}": _ENDS for side in "qk"}
    | {name: (f"total_{shape[1][-1]}", *shape[2:]) for name, shape in _DENSE.items()},
    {**_DENSE},
    {"a": ("m", "k"), "b": ("k", "n"), "out": ("m", "n")},
)
"""Shapes of tensors with these names, those of the result last."""
_FLAG = re.compile(r"^(is|use|has|with|enable|need|return)_|causal|trans|accumulate$")


@dataclass(frozen=True)
class Argument:
    """An argument that is not a tensor.

    Attributes:
        name: its name.
        kind: dtype, tile, setting, flag, size or other.
        value: its value in the trace or in the first call.
        default: whether the value is the default.
        values: all values in recorded calls.
    """

    name: str
    kind: str
    value: Any
    default: bool
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """A tensor that the code takes, returns or writes.

    Attributes:
        shape: numbers, and expressions of arguments and symbolic dimensions.
        dtype_of: the argument that determines its dtype.
        seen: the tensor in each recorded call.
        grad: whether it gets a gradient.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    dtype_of: str | None = None
    seen: tuple[Seen, ...] = ()
    grad: bool = False

    @property
    def integer(self) -> bool:
        """Whether it may hold indices."""
        return self.dtype in ("int32", "int64")

    @property
    def values(self) -> tuple[tuple[int, ...], ...]:
        """Its values in each call; empty if they are not all known."""
        found = [each.values for each in self.seen]
        return () if None in found else tuple(each for each in found if each is not None)

    @property
    def limits(self) -> tuple[tuple[int, int], ...]:
        """Its least and its largest value in each call; empty if they are not all known."""
        known = [(min(e.values), max(e.values)) if e.values else e.limits for e in self.seen]
        found = [(0, -1) if e.values == () else k for e, k in zip(self.seen, known, strict=True)]
        return () if None in found else tuple(each for each in found if each is not None)

    @property
    def distinct(self) -> bool:
        """Whether no number of a row occurs twice in any call, where by chance some would."""
        if not self.seen or not all(each.distinct for each in self.seen):
            return False
        pairs = 0.0
        for each, (least, most) in zip(self.seen, self.limits, strict=False):
            row = each.shape[-1]
            pairs += math.prod(each.shape) * (row - 1) / 2 / (most - max(0, least) + 1 or 1)
        return pairs > BY_CHANCE

    def sizes(self, dim: int) -> tuple[int, ...]:
        """A dimension in each call."""
        return tuple(each.shape[dim] for each in self.seen)


@dataclass(frozen=True)
class Number:
    """A scalar parameter of a traced kernel."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Interface:
    """The parameters, results and uses of the code under test.

    Attributes:
        factory: whether the target is a factory.
        parameters: the parameters of the kernel or entry, in order.
        results: the tensors that the call returns.
        arguments: the arguments of the factory, or those of the entry that are not tensors.
        construct: the arguments of a constructor.
        module: the tensors that are parameters of the module.
        symbols: the symbolic dimensions with their sizes in each call, in order.
        changed: the parameters that the call writes.
        uses: how kernels use the parameters.
        dtypes: the dtypes that inputs with the axis `dtype` support.
        order: the outputs that the reference returns, in its order, or `_` for a result that is
            none; empty for those of the call.
        paths: the position of each result in the returned value, `0`, `aux.counts`, and of each
            argument in it, under a name with a dot, which no tensor has.
        guesses: those of `Relations`.
        calls: how many calls it is inferred from.
    """

    factory: bool
    parameters: tuple[Tensor | Number, ...]
    results: tuple[Tensor, ...]
    arguments: tuple[Argument, ...] = ()
    construct: tuple[Argument, ...] = ()
    module: frozenset[str] = frozenset()
    symbols: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()
    uses: Uses = field(default_factory=Uses)
    dtypes: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    guesses: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    calls: int = 0

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the parameters."""
        return tuple(item for item in self.parameters if isinstance(item, Tensor))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors whose values the call reads: all but those that it only writes."""
        return tuple(item for item in self.tensors if item.name not in self.pure_outputs)

    @property
    def pure_outputs(self) -> frozenset[str]:
        """The written parameters whose values before do not matter."""
        return self.changed - self.uses.updated

    @property
    def scratch(self) -> frozenset[str]:
        """The written parameters that are no outputs."""
        return self.changed - {each.name for each in self.outputs}

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Tensors that the call writes or returns, in the order of the reference or the call."""
        found = [*(item for item in self.tensors if item.name in self.changed), *self.results]
        if self.order:
            by_name = {item.name: item for item in found}
            return tuple(by_name[name] for name in self.order if name != SKIPPED)
        return tuple(found)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Interface:
        """The interface with other tensors."""
        given = (change(e) if isinstance(e, Tensor) else e for e in self.parameters)
        return replace(self, parameters=tuple(given), results=tuple(map(change, self.results)))

    def without_gradients(self) -> Interface:
        """The interface of which no input gets a gradient."""
        return self.mapped(lambda each: replace(each, grad=False))

    def of_calls(self, kept: Sequence[int] = ()) -> Interface:
        """The interface with the sizes and values of some calls; of none with all dtypes."""

        def only(column: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(column[k] for k in kept)

        guesses = {size: (name, only(column)) for size, (name, column) in self.guesses.items()}
        arguments, construct = (
            tuple(
                each
                if each.kind == "dtype" and not kept
                else replace(each, values=only(each.values))
                for each in every
            )
            for every in (self.arguments, self.construct)
        )
        return replace(
            self.mapped(lambda each: replace(each, seen=only(each.seen))),
            arguments=arguments,
            construct=construct,
            symbols={name: only(column) for name, column in self.symbols.items()},
            guesses=guesses if kept else {},
            calls=len(kept),
        )

    def untied(self, size: str) -> Interface:
        """The interface with a symbol of its own for the dimensions of a size that is guessed."""
        name, column = self.guesses[size]

        def changed(each: Tensor) -> Tensor:
            return replace(each, shape=tuple(name if s == size else s for s in each.shape))

        known = self.with_fact(size).mapped(changed)
        return replace(known, symbols={**self.symbols, name: column})

    def with_fact(self, size: str) -> Interface:
        """The interface in which a size is no guess."""
        left = {text: each for text, each in self.guesses.items() if text != size}
        return replace(self, guesses=left)

    @property
    def tied_dtypes(self) -> dict[str, str]:
        """Arguments that in all calls have the dtype of a tensor's, with the argument of that."""
        arguments = {each.name: each for each in (*self.arguments, *self.construct)}
        followed = [each.dtype_of for each in self.tensors if each.dtype_of in arguments]
        columns = {arguments[name].values: name for name in followed if name is not None}
        dtypes = (each for each in arguments.values() if each.kind == "dtype" and each.values)
        return {
            each.name: columns[each.values]
            for each in dtypes
            if each.values in columns and each.name not in followed
        }


def annotation_text(annotation: object) -> str:
    """An annotation as it is written."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def argument_kind(name: str, default: object, annotation: object) -> str:
    """The probable kind of an argument: dtype, tile, setting, flag, size or other."""
    text = annotation_text(annotation)
    if _DTYPE.search(name.lower()):
        return "dtype"
    if isinstance(default, bool) or text == "bool":
        return "flag"
    if isinstance(default, str | float | list) or text in ("str", "float"):
        return "other"
    if name.lower() in SETTINGS:
        return "setting"
    if _TILE.search(name):
        return "tile"
    if default is None and text != "int" and _FLAG.search(name):
        return "flag"
    if default is None and text != "int" and re.search(r"eps|scale|alpha|beta", name):
        return "other"
    return "size"


def _options(target: Target) -> Iterator[Argument]:
    """The parameters with a default: both truth values, or the default to start from."""
    for each in target.parameters:
        default = each.default
        word = isinstance(default, str) and default.isidentifier()
        if isinstance(default, int) or word or (default is None and each.name == "window"):
            kind = argument_kind(each.name, default, each.annotation)
            values = (False, True) if isinstance(default, bool) else ()
            yield Argument(each.name, kind, default, default is None, values)


def signature_interface(target: Target, arguments: Sequence[Argument] = ()) -> Interface:
    """The interface of a target of which only the signature is known: tensors are guesses.

    Args:
        target: the code under test.
        arguments: those of a factory; else parameters with a default are options.

    Raises:
        UsageError: there is no parameter without a default.
    """
    required = [each.name for each in target.parameters if each.default is each.empty]
    if not required and not target.is_factory:
        raise UsageError(
            f"{target.text!r} has no parameter without a default, so its inputs are unknown; "
            "give an example call (--call or --script)"
        )
    names = ["x", "out"] if target.is_factory else [*required, "out"]
    known = (shapes for shapes in _BY_NAMES if {*shapes} <= {*names})
    shapes = next(known, dict.fromkeys(names, _ROWS))
    typed = next((each.name for each in arguments if each.kind == "dtype"), "dtype")
    tensors = [
        Tensor(
            name, "int32" if shape == _ENDS else "float16", shape, None if shape == _ENDS else typed
        )
        for name, shape in shapes.items()
    ]
    sides = "qk" if _ENDS in shapes.values() else ""
    starts = (Selection(f"cu_seqlens_{side}", side, 0, "start") for side in sides)
    return Interface(
        factory=target.is_factory,
        parameters=tuple(tensors[:-1]),
        results=tuple(tensors[-1:]),
        arguments=tuple(arguments or _options(target)),
        uses=Uses(selections=frozenset(starts)),
        dtypes=("float16", "bfloat16"),
    )


# From recorded calls -----------------------------------------------------------------------------


def interface_of(target: Target, calls: Sequence[Call]) -> Interface:
    """The interface of a target, of calls of one form."""
    first = calls[0]
    traced = first.sizes is not None
    named = _titles(target, first)
    given = {name: tuple(call.tensors[name] for call in calls) for name in first.tensors}
    made = {path: tuple(call.results[path] for call in calls) for path in first.results}
    made_of, passed = [call.construct for call in calls], [call.arguments for call in calls]
    construct = tuple(_arguments(target.found, made_of)) if target.constructs else ()
    # An eager kernel takes all at once.
    compiled = target.is_factory and bool(first.construct)
    arguments = tuple(_arguments(target.written, made_of if compiled else passed))
    relations = _relations(calls, given, made, (*arguments, *construct))
    own = tuple(map(_main_dtype, calls))
    dtypes = tuple(dict.fromkeys(filter(None, own)))
    if traced:
        dtypes = dtypes if {*dtypes} <= {*_HALVES} else dtypes[:1]
    typed = {each.name: each.values for each in (*arguments, *construct) if each.kind == "dtype"}
    axis = next((name for name, column in typed.items() if column == own), None)
    if axis is None and not traced:
        axis = "input_dtype" if "dtype" in typed else "dtype"
    grads = frozenset(name for call in calls for name in call.grads or ())

    def tensor(place: str, seen: tuple[Seen, ...], name: str) -> Tensor:
        column = tuple(each.dtype for each in seen)
        follows = axis if column == own else None
        return Tensor(
            name,
            seen[0].dtype,
            tuple(relations.dims[place, dim] for dim in range(len(seen[0].shape))),
            dtype_of=follows or next((n for n, each in typed.items() if each == column), None),
            seen=seen,
            grad=name in grads,
        )

    tensors = [tensor(name, seen, name) for name, seen in given.items()]
    results = [tensor(path, seen, named[path]) for path, seen in made.items()]
    parameters = {each.name for each in target.parameters}
    return Interface(
        factory=target.is_factory,
        parameters=tuple(_with_scalars(target, first, tensors)),
        results=tuple(results),
        arguments=arguments,
        construct=construct,
        module=frozenset({*given} - parameters) if target.constructs else frozenset(),
        symbols=relations.symbols,
        changed=frozenset(name for call in calls for name in call.changed),
        uses=reduce(merged, (call.uses for call in calls)),
        dtypes=dtypes if axis is not None else (),
        paths={named[path]: path for path in made} | {f"{path}.": path for path in first.passed},
        guesses=relations.guesses,
        calls=len(calls),
    )


def _with_scalars(
    target: Target, call: Call, tensors: Iterable[Tensor]
) -> Iterator[Tensor | Number]:
    """The parameters of a call: tensors, and of a factory's kernel the scalars beside them."""
    named = {each.name: each for each in tensors}
    compiled = {each.name for each in target.parameters} | call.construct.keys()
    for name, value in call.arguments.items():
        if name in named:
            yield named[name]
        elif target.is_factory and isinstance(value, int | float) and name not in compiled:
            yield Number(name, "int32" if isinstance(value, int) else "float32")


def _relations(
    calls: Sequence[Call],
    given: Mapping[str, tuple[Seen, ...]],
    made: Mapping[str, tuple[Seen, ...]],
    arguments: Sequence[Argument],
) -> Relations:
    columns = {
        (name, dim): tuple(each.shape[dim] for each in seen)
        for name, seen in (*given.items(), *made.items())
        for dim in range(len(seen[0].shape))
    }
    names: dict[Place, str] = {}
    for call in calls:
        for text, name in call.names.items():
            tensor, _, dim = text.rpartition(".")
            if (tensor, int(dim)) in columns:
                names.setdefault((tensor, int(dim)), name)
    traced = calls[0].sizes is not None
    chosen = {n: tuple((c.sizes or {})[n] for c in calls) for n in calls[0].sizes or ()}
    tiles = _whole_numbers(arguments, "tile") if traced else {}
    integers = {name: seen for name, seen in given.items() if seen[0].dtype in ("int32", "int64")}
    vectors = [name for name, seen in integers.items() if len(seen[0].shape) == 1 and not traced]
    return relate(
        columns,
        names,
        scalars=_whole_numbers(arguments, "size") | tiles | chosen,
        vectors=frozenset(vectors),
        offsets=frozenset(name for name in vectors if may_be_offsets(given[name])),
        results=frozenset(made),
        taken=frozenset(given),
        tiles=sorted({size for column in tiles.values() for size in column}) if traced else None,
    )


def may_be_offsets(seen: Sequence[Seen]) -> bool:
    """Whether a vector may have offsets, whose number is not that of another dimension."""
    found = [each.values or () for each in seen]
    return all(
        values[:1] == (0,)
        and all(a <= b for a, b in pairwise(values))
        and values[-1] >= len(values)
        for values in found
    )


def _main_dtype(call: Call) -> str:
    """The dtype of the inputs: of those in half precision if there are some."""
    floats = [each.dtype for each in call.tensors.values() if "float" in each.dtype]
    halves = [dtype for dtype in floats if dtype in _HALVES]
    counted = Counter(halves or [each for each in floats if each == "float32"])
    return counted.most_common(1)[0][0] if counted else ""


def _arguments(
    function: Callable[..., Any], found: Sequence[Mapping[str, Value]]
) -> Iterator[Argument]:
    """The arguments of a function that are no tensors, with their values in each call."""
    parameters = inspect.signature(function).parameters
    for name, value in found[0].items():
        values = tuple(each.get(name) for each in found)
        parameter = parameters.get(name)
        default = parameter is not None and all(v == _plain(parameter.default) for v in values)
        if isinstance(value, Seen | Opaque) or (value is None and default):
            continue
        kind = argument_kind(name, value, parameter.annotation if parameter else None)
        yield Argument(name, kind, value, default, values)


def _plain(value: object) -> object:
    return str(value)[6:] if str(value).startswith("torch.") else value


def _titles(target: Target, call: Call) -> dict[str, str]:
    """Names of results: keys, names that the own `return` has, or `out`."""
    paths = list(call.results)
    if any(not path.isdigit() for path in paths):
        return {path: path.rpartition(".")[2] for path in paths}
    names = target.returned_names
    if len(names) == len(paths) == len({*names} - {*call.arguments}):
        return dict(zip(paths, names, strict=True))
    numbered = len(paths) > 1
    return {path: f"out{k}" if numbered else "out" for k, path in enumerate(paths)}


def _whole_numbers(arguments: Sequence[Argument], *kinds: str) -> dict[str, Column]:
    """The sizes among arguments, in each call."""
    return {
        each.name: each.values
        for each in arguments
        if each.kind in kinds and all(type(value) is int for value in each.values)
    }
