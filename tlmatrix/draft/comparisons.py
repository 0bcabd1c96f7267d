"""What the results of recorded calls are compared with, and which functions made that."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from tlmatrix.draft.calls import Comparison, Opaque, Seen, flattened, seen, set_of_traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tlmatrix.draft.calls import Call
    from tlmatrix.draft.slices import Position, Slicer

_DIFFERENCES = frozenset({"__sub__", "__rsub__", "sub", "subtract"})
_COMPARED_NAMES = ("actual", "input", "expected", "other")
"""Of what PyTorch's functions compare."""
_CONVERSIONS = frozenset({
    "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "int",
    "long", "to", "type", "type_as",
})  # fmt: skip
"""Methods whose result has the same elements in another dtype or memory."""
_PRODUCTS = frozenset({
    "__matmul__", "__rmatmul__", "addmm", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "einsum",
    "linear", "matmul", "mm", "scaled_dot_product_attention", "softmax",
})  # fmt: skip
"""Operations that take long."""
_LARGE = 1 << 16
_MOST_RESULTS = 4096
"""Most recent results that are remembered."""
_MOST_BYTES, _FEWEST_RESULTS = 2 << 30, 32
"""Where they have more bytes, fewer are remembered."""


class Result(NamedTuple):
    """A tensor that a recorded call returned or wrote, with the call's arguments.

    `noted` are the functions that it was compared with.
    """

    tensor: torch.Tensor
    call: Call
    path: str
    arguments: Mapping[str, Any]
    noted: set[tuple[str, str, bool]]


class Returned(NamedTuple):
    """A tensor that a function without a kernel returned, with its arguments.

    `source` is the text of a function that is defined inside of another one.
    """

    tensor: torch.Tensor
    function: str
    arguments: Mapping[str, Any]
    construct: Mapping[str, Any]
    source: str = ""


class Conversions(TorchFunctionMode):
    """Inside, it is noted which tensor each converted one has its elements from.

    Args:
        skip: whether large products are zeros, and new memory is, as where kernels do not run.
        made: what a tensor is that is remembered; None of others.
        differ: called with two tensors of which the program computes the difference.
    """

    def __init__(
        self,
        *,
        skip: bool = False,
        made: Callable[[torch.Tensor], Result | Returned | None] = lambda _: None,
        differ: Callable[[Any, Any], None] = lambda _one, _other: None,
    ) -> None:
        super().__init__()
        self._sources = WeakIdKeyDictionary()
        self._origins = WeakIdKeyDictionary()
        self._skip = skip
        self._made = made
        self._differ = differ

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """See `torch.overrides`."""
        name = getattr(func, "__name__", "")
        if self._skip and name in _PRODUCTS and _is_large(args):
            made = tree_map_only(torch.Tensor, lambda e: e.to("meta"), (args, kwargs or {}))
            tensors = [each for each in tree_leaves(args) if isinstance(each, torch.Tensor)]
            return _Zeros.apply(func(*made[0], **made[1]), *tensors)  # type: ignore[no-untyped-call]
        if name in _DIFFERENCES:
            self._differ(*args[:2])
        found = func(*args, **(kwargs or {}))
        self._note_origins(name, args, found)
        if self._skip and name in ("empty", "empty_like", "new_empty"):
            found.detach().zero_()  # it may require a gradient
        named = name in _CONVERSIONS
        if named and isinstance(found, torch.Tensor) and found is not args[0]:
            self._sources[found] = args[0]
        return found

    def _note_origins(self, name: str, args: Sequence[Any], found: object) -> None:
        given = [args[2]] if name == "__setitem__" else args[:1] if name == "__getitem__" else args
        tensors = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
        origins = frozenset().union(*map(self.origins, tensors))
        made = args[0] if name == "__setitem__" else found
        for each in flattened(made).values() if origins else ():
            self._origins[each] = self.origins(each) | origins

    def origins(self, tensor: torch.Tensor) -> frozenset[int]:
        """The remembered tensors from which one is computed."""
        own = self._made(tensor)
        if isinstance(own, Result):
            return frozenset({id(tensor)})
        known: frozenset[int] = self._origins.get(tensor, frozenset())  # type: ignore[no-untyped-call]
        return known if own is None else known | {id(tensor)}

    def chain(self, tensor: Any) -> Iterator[Any]:
        """A tensor, the one that it was converted from, and so on."""
        yield tensor
        while isinstance(tensor, torch.Tensor) and tensor in self._sources:
            tensor = self._sources[tensor]
            yield tensor

    def root(self, tensor: Any) -> Any:
        """The tensor at the start of all conversions."""
        *_, first = self.chain(tensor)
        return first


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a conversion between the dtypes of two tensors keeps values, but for rounding."""
    kinds = ((e.is_floating_point(), e.dtype.is_signed) for e in (one, other))
    return len({*kinds}) == 1


def _is_large(args: Sequence[Any]) -> bool:
    """Whether an operation has large tensors."""
    given = tree_leaves(args)
    return any(isinstance(each, torch.Tensor) and each.numel() > _LARGE for each in given)


class _Zeros(torch.autograd.Function):
    """Zeros of the shape of a tensor on `meta`, of which other tensors get gradients of zeros."""

    @staticmethod
    def forward(ctx: Any, like: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """See `torch.autograd.Function`."""
        ctx.save_for_backward(*tensors)
        return torch.zeros_like(like, device="cpu")

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        """See `torch.autograd.Function`."""
        return None, *map(torch.zeros_like, ctx.saved_tensors)


class Comparisons:
    """Notes comparisons of results with what other functions return.

    Args:
        keep: called with each call whose result is compared, and with the comparison.
        slicer: finds the code of expected values that no function returns.
        agree: whether comparisons hold, as where kernels are only traced: what is compared gets
            the expected values.

    Attributes:
        conversions: a mode under which the program runs.
    """

    def __init__(self, keep: Callable[[Call], None], slicer: Slicer, *, agree: bool) -> None:
        self._keep = keep
        self._slicer = slicer
        self.agree = agree
        self._made: dict[int, Result | Returned] = {}
        self._bytes = 0
        self.conversions = Conversions(
            skip=agree, made=lambda each: self._made.get(id(each)), differ=self._note_difference
        )

    def _note_difference(self, one: object, other: object) -> None:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            self._note_origins(one, other)

    def _note_origins(self, one: torch.Tensor, other: torch.Tensor) -> None:
        """Note a comparison of what is computed alike of a result and of an expected value."""
        made = [
            [self._made[number] for number in self.conversions.origins(each) & self._made.keys()]
            for each in (one, other)
        ]
        for mine, theirs in (made, made[::-1]):
            results = [each for each in mine if isinstance(each, Result)]
            if len(results) != 1 or any(isinstance(each, Result) for each in theirs):
                continue
            size = results[0].tensor.numel()
            expected = [each.tensor for each in theirs if each.tensor.numel() == size]
            for tensor in expected[:1]:
                self._note(results[0], results[0].tensor, tensor, None, guessed=True)
                self._agree(one, other)

    def remember(self, made: Result | Returned, *, again: bool = True) -> None:
        """Remember which call or function made a tensor, and forget the oldest one.

        Of functions the last one that returns it is the one that its user calls.

        Args:
            made: the tensor.
            again: whether it may be of another function that returned the tensor before, as that
                cannot be called with what a spec writes.
        """
        number = id(made.tensor)
        known = self._made.get(number)
        if isinstance(made, Returned) and (isinstance(known, Result) or (known and not again)):
            return  # it only passes a result on
        self._bytes += made.tensor.nbytes * (number not in self._made)
        self._made[number] = made
        while len(self._made) > (_MOST_RESULTS if self._bytes <= _MOST_BYTES else _FEWEST_RESULTS):
            self._bytes -= self._made.pop(next(iter(self._made))).tensor.nbytes

    def functions(self) -> Iterator[tuple[Any, str, Any]]:
        """Functions that compare, as (owner, name, what is to replace them)."""
        for module, name in (
            ("torch.testing", "assert_close"),
            ("torch", "allclose"),
            ("torch", "equal"),
            ("torch.testing._comparison", "assert_close"),
            ("tilelang.testing", "torch_assert_close"),
            ("tilelang.utils.tensor", "torch_assert_close"),
            ("tilelang.profiler", "torch_assert_close"),
        ):
            owner = import_module(module)
            original = getattr(owner, name, None)
            if original is not None:
                yield owner, name, self._noting(original)

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def comparing(*args: Any, **keywords: Any) -> Any:
            named = {name: keywords[name] for name in _COMPARED_NAMES if name in keywords}
            values = [*args[:2], *named.values()]
            places = [*((k, "") for k in range(len(args[:2]))), *((2, name) for name in named)]
            if len(values) > 1:
                own = self._slicer.is_own(sys._getframe(1))  # noqa: SLF001
                self.note(values[0], values[1], places if own else ())
            return self.agree or original(*args, **keywords)

        return comparing

    def note(
        self,
        one: object,
        other: object,
        positions: Sequence[Position] = (),
    ) -> None:
        """Note a comparison if it is one of a result.

        Args:
            one: a value.
            other: the value that it is compared with.
            positions: those of the two in the call of the program that compares them.
        """
        places = (*positions, None, None)
        for result, expected, place in ((one, other, places[1]), (other, one, places[0])):
            values = (flattened(result).values(), flattened(expected).values())
            pairs = list(zip(*values, strict=False))
            if any(mine.numel() != theirs.numel() for mine, theirs in pairs):
                continue  # it compares parts of them
            for mine, theirs in pairs:
                found = self._source(mine)
                if found is None and place is places[1]:
                    self._note_origins(mine, theirs)
                elif found is not None and self._source(theirs) is None:
                    self._note(found, mine, theirs, place)

    def _agree(self, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        if self.agree and mine.shape == theirs.shape:
            # Others check values, too; `data`, as a backward pass may need the tensor as it was.
            with suppress(RuntimeError), torch.no_grad():
                mine.data.copy_(theirs)
                set_of_traced(mine, False)

    def _note(
        self,
        found: Result,
        mine: torch.Tensor,
        theirs: torch.Tensor,
        place: Position | None,
        *,
        guessed: bool = False,
    ) -> None:
        self._agree(mine, theirs)
        for noted in self._compared(found, theirs, place):
            key = noted.function, noted.source
            if not {(*key, False), (*key, guessed)} & found.noted:
                self._keep(replace(found.call, compared=(replace(noted, guessed=guessed),)))
            found.noted.add((*key, guessed))

    def _compared(
        self,
        found: Result,
        theirs: torch.Tensor,
        place: Position | None,
    ) -> Iterator[Comparison]:
        """The comparisons of a result: with what a function returned, and with a part of one."""

        def named(values: Mapping[str, Any]) -> dict[str, object]:
            return {name: self._named(value, found.arguments) for name, value in values.items()}

        def is_input(value: object) -> bool:
            return isinstance(value, torch.Tensor) and bool(self._named(value, found.arguments))

        chain = [*self.conversions.chain(theirs)]
        functions = (self._made.get(id(each)) for each in chain)
        by = next((made for made in functions if isinstance(made, Returned)), None)
        if by is not None:
            arguments, construct = named(by.arguments), named(by.construct)
            yield Comparison(found.path, by.function, arguments, construct, by.source)
            known = not any(isinstance(each, Opaque) or each == "" for each in arguments.values())
            if known and (by.source or "<locals>" not in by.function):
                return
        try:
            part = self._slicer.slice_of(chain, place, is_input)
        except Exception:  # noqa: BLE001 - the program goes on, whatever its code is
            part = None
        if part is not None:
            arguments = named(part.arguments)
            yield Comparison(found.path, part.function, arguments, {}, part.source)
        elif by is None:
            yield Comparison(found.path, "", {}, {})

    def _named(self, value: object, arguments: Mapping[str, Any]) -> object:
        """An argument of a reference: `$name` for an argument of the call, or a constant."""
        if isinstance(value, torch.Tensor):
            root = self.conversions.root(value)
            tensors = ((n, e) for n, e in arguments.items() if isinstance(e, torch.Tensor))
            same = (n for n, e in tensors if self.conversions.root(e) is root and _alike(value, e))
            return next((f"${name}" for name in same), "")
        noted = seen(value)
        return noted if not isinstance(noted, Seen) else ""

    def _source(self, tensor: torch.Tensor) -> Result | None:
        """The call that made a tensor, or that of the same size which made the last one."""
        for each in self.conversions.chain(tensor):
            if (made := self._made.get(id(each))) is not None:
                return made if isinstance(made, Result) else None
        for made in reversed(self._made.values()):
            shared = made.tensor.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            if isinstance(made, Result) and shared and made.tensor.numel() == tensor.numel():
                return made
        return None
