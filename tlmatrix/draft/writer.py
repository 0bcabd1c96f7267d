"""Drafts the spec of an interface."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.draft.interface import Number, Tensor
from tlmatrix.draft.references import alike, matched, reference_of
from tlmatrix.draft.roles import substitute
from tlmatrix.draft.sizes import COUNT
from tlmatrix.draft.text import Draft, Line, constant, quoted
from tlmatrix.problem.calling import parameters_of
from tlmatrix.spec.expr.expression import Expression, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tlmatrix.draft.interface import Argument, Interface
    from tlmatrix.draft.references import Found
    from tlmatrix.draft.roles import Packing, Recognition
    from tlmatrix.draft.targets import Target
    from tlmatrix.draft.text import Reference

NO_ROWS = "callers launch no kernel without rows"
_VALUES = ("normal", "large", "zero_rows", "rising")
_WITHOUT_TIES = ("normal", "large")
_MOST_ELEMENTS = 1 << 24
"""Most elements of a tensor of a draft: a case takes seconds."""
_TILE = 64
"""The size of a tile if it is unknown."""


def declared_draft(
    target: Target, interface: Interface, recognition: Recognition, found: Found | None
) -> Draft:
    """A draft with a declared problem."""
    return _Writer(target, interface, recognition, found).draft()


# Values of axes ----------------------------------------------------------------------------------


def sizes(name: str, *, tile: int | None, recorded: Sequence[int]) -> list[int]:
    """Sizes of a dimension: two tiles and a tail of each loop over it, and the recorded ones.

    Sizes of several calls may share a factor of 8 or more: then multiples of it, and one other.

    Args:
        name: its name in the code.
        tile: the size of a step over it.
        recorded: its size in recorded calls.
    """
    small = [size for size in sorted({*recorded}) if size <= 512][:3]
    if re.search(r"experts?$", name, re.IGNORECASE):
        return sorted({*small, max(2, small[0] - 2)}) if small else [4, 6]
    if re.search(r"width|taps|kernel_size", name, re.IGNORECASE):
        return [1, 2, 4]
    if COUNT.search(name) and all(size <= 8 for size in recorded):
        return sorted({1, *(small or [3])}) if set(small) - {1} or not small else [1, 3]
    edge = tile or _TILE
    if step := shared_factor(recorded):
        whole = [tile, 2 * tile] if tile and tile % step == 0 else []
        return sorted({step, step + 1, *whole, *small})
    if small and tile is None:
        return sorted({1, *small, small[0] + 1})
    # The last size takes several tiles, and several iterations of a persistent block.
    near = (1, edge - 1, edge, edge + 1, 2 * edge + 1)
    return list(dict.fromkeys(each for each in near if each > 0))


def shared_factor(recorded: Sequence[int]) -> int:
    """The factor that all sizes of several calls have; 0 if it is small."""
    step = math.gcd(*recorded)
    return step if len({*recorded}) > 1 and step >= 8 else 0


def lengths(packings: Sequence[Packing]) -> list[str]:
    """Values of a packed axis as YAML, on both sides of the edges of tiles."""
    tile = max((each.tile for each in packings if each.tile), default=0) or _TILE // 2
    first = [[tile], [1, tile + 1, 3], [0, 2 * tile + 1, 1, 0, tile - 1]]
    sides = [each.side for each in packings]
    if sides == [None]:
        return [_row(each) for each in first]
    if packings[1].rows is None:
        # Lengths of a second side, such as cached keys, which include the new rows.
        more = [[5], [0, tile, 16], [7, 1, 0, 3, 30]]
    else:
        more = [[-5 if tile > 5 else 0], [6, 0, -3], [9, -tile, 0, 4, 2]]
    return [
        f"{{q: {_row(q)}, k: {_row([a + b for a, b in zip(q, add, strict=True)])}}}"
        for q, add in zip(first, more, strict=True)
    ]


def _axis_value(value: object) -> str:
    return str(value) if isinstance(value, str) else constant(value)


def _row(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def fuzz_lines(axes: Mapping[str, Sequence[str]]) -> Iterator[Line]:
    """The fuzz section of axes that take any size up to their largest."""
    parts = []
    for name, values in axes.items():
        largest = max(int(value) for value in values)
        parts.append(f"{name}: 1..{largest + largest // 2 + 1}")
    if parts:
        yield Line("axes", f"{{{', '.join(parts)}}}")
        yield Line("examples", "{quick: 5, nightly: 200}")


# Parts of a draft --------------------------------------------------------------------------------


def _spec_name(target: str) -> str:
    """The name of a spec."""
    return re.sub(r"\W+", "_", target.partition(":")[2].removesuffix(".apply"))


def _summary_of(target: Target) -> str:
    """The first line of the docstring of the function, class or module, in quotes."""
    found = [target.written, target.owner, target.module]
    # Not `inspect.getdoc`, which returns the docstring of a base class.
    documents = [inspect.cleandoc(each.__doc__ or "") for each in found]
    document = next((each for each in documents if each), "")
    lines = document.strip().splitlines()
    line = lines[0] if lines else "One sentence about the operator."
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'


def heading(target: Target) -> tuple[str, str, str]:
    """The name, the summary and the target of a draft."""
    return _spec_name(target.text), _summary_of(target), target.text


def with_names_of(interface: Interface, found: Found | None) -> Interface:
    """Rename a traced kernel's parameters to those of the reference that differ in case only."""
    if not interface.factory or found is None:
        return interface
    names = list(parameters_of(found.function) or ())
    dims = {dim: dim for dim in range(8)}
    taken = {each.name for each in interface.arguments} | {*interface.symbols}
    mine = [each.name for each in (*interface.parameters, *interface.results)]
    renames = {
        old: new
        for new, old in matched(names, mine).items()
        if new not in taken and alike(new, old)
    }
    renames = {name: renames.get(name, name) for name in mine}
    return replace(
        interface,
        parameters=tuple(replace(each, name=renames[each.name]) for each in interface.parameters),
        results=tuple(replace(each, name=renames[each.name]) for each in interface.results),
        changed=frozenset(renames[name] for name in interface.changed),
        uses=interface.uses.renamed({old: (new, dims) for old, new in renames.items()}),
    )


class _Writer:
    def __init__(
        self,
        target: Target,
        interface: Interface,
        recognition: Recognition,
        found: Found | None,
    ) -> None:
        self.target = target
        self.interface = interface
        self.recognition = recognition
        self.found = found
        self.takes = set((found and parameters_of(found.function)) or ())
        self.notes: list[str] = []
        self.remarks: dict[str, str] = {}
        every = (*interface.arguments, *interface.construct)
        self.arguments = {each.name: each for each in every}
        self.numbers = {**recognition.numbers, **interface.tied_dtypes}
        added = interface.uses.added if interface.factory else frozenset()
        self.inouts = {
            name
            for name in interface.changed
            if name in self.takes or (name in interface.uses.updated and name not in added)
        }
        self.inputs = [
            each
            for each in interface.tensors
            if each.name not in interface.changed or each.name in self.inouts
        ]
        self.ranges: set[str] = set()
        self.multiples: dict[str, int] = {}
        self.axes = self._affordable(dict(self._axes()))
        self.outputs = {each.name: self._free_name(each) for each in interface.outputs}

    def draft(self) -> Draft:
        """The draft."""
        reference = self._reference()
        interface = self.interface
        for line in self._recognition_notes():
            self.notes.append(line)
        if reference is not None and reference.difference:
            self.notes.append(reference.difference)
        if reference is None:
            self.notes.append(
                f"no reference found for {interface.target}: the spec needs one to run"
            )
        return Draft(
            *heading(self.target),
            factory=interface.factory,
            inputs=tuple(self._input(each) for each in self.inputs),
            outputs=tuple(self._output(each) for each in interface.outputs),
            reference=reference,
            stub=() if reference is not None else tuple(self._stub()),
            factory_args=tuple(self._compile()) if interface.factory else (),
            constructor_args=tuple(
                Line(each.name, self._value(each))
                for each in interface.construct
                if each.name in self.axes or not each.default
            ),
            call=self._call(),
            returns=self._returns(),
            axes=self.axes,
            remarks=self.remarks,
            constraints=tuple(self._where()),
            tolerance=tuple(self._tolerance()),
            fuzz=tuple(self._fuzz()),
            multiples=self.multiples,
            recorded={name: each for name, each in self._recorded() if name in self.axes},
            notes=tuple(self.notes),
        )

    # Tensors -------------------------------------------------------------------------------

    def _input(self, tensor: Tensor) -> Line:
        role = self.recognition.roles.get(tensor.name)
        dtype = f"${tensor.dtype_of}" if tensor.dtype_of else tensor.dtype
        shape = f"shape: [{self._shape(tensor)}], dtype: {dtype}"
        if role is None:
            grad = ", grad: true" if tensor.grad and not self.interface.factory else ""
            remark = "set its range with between: [least, largest]" if tensor.integer else ""
            return Line(tensor.name, f"{{{shape}{grad}}}", remark)
        if isinstance(role.of, tuple):
            least, largest = role.of
            return Line(tensor.name, f"{{{shape}, between: [{least}, {quoted(largest)}]}}")
        parts = [f"{role.key}: {quoted(role.of)}"]
        if role.page_size is not None:
            size = substitute(role.page_size, self.recognition.dims)
            parts.append(f"page_size: {quoted(str(size))}")
        if tensor.dtype != "int32":
            parts.append(f"dtype: {tensor.dtype}")
        return Line(tensor.name, f"{{{', '.join(parts)}}}")

    def _shape(self, tensor: Tensor) -> str:
        dims = self.recognition.dims
        return ", ".join(quoted(str(substitute(size, dims))) for size in tensor.shape)

    def _output(self, tensor: Tensor) -> Line:
        name = self.outputs[tensor.name]
        given = tensor.name in self.interface.changed
        first = next((each for each in self.inputs if each.dtype_of or not each.integer), None)
        dtype = f"${tensor.dtype_of}" if tensor.dtype_of else tensor.dtype
        own = f"${first.dtype_of}" if first and first.dtype_of else first and first.dtype
        parts = []
        if (given and tensor.name not in self.inouts) or not self._told_by_reference:
            parts.append(f"shape: [{self._shape(tensor)}]")
        elif shape := self._packed_shape(tensor):
            parts.append(f"shape: [{', '.join(map(quoted, shape))}]")
        if dtype != own or (self.interface.factory and parts):
            parts.append(f"dtype: {dtype}")
        return Line(name, f"{{{', '.join(parts)}}}" if parts else "")

    @property
    def _told_by_reference(self) -> bool:
        """Whether a reference tells the shapes of results, which calls may show by chance."""
        return self.found is not None and (not self.interface.factory or self.interface.calls > 0)

    def _packed_shape(self, tensor: Tensor) -> list[str]:
        """The shape of a result of a packed problem; empty if a size is ambiguous."""
        known: dict[tuple[int, ...], set[str]] = {}
        for symbol, column in self.interface.symbols.items():
            text = self.numbers.get(symbol) or substitute(symbol, self.recognition.dims)
            known.setdefault(column, set()).add(str(text))
        for packing in self.recognition.packings:
            of, each = packing.expression, packing.lengths
            if each and all(each):
                known.setdefault(tuple(map(len, each)), set()).add(f"len({packing.axis})")
                known.setdefault(tuple(map(max, each)), set()).add(f"max({of})")
        found = [known.get(tensor.sizes(dim), set()) for dim in range(len(tensor.shape))]
        if not self.recognition.packings or any(len(each) != 1 for each in found):
            return []
        return [text for each in found for text in each]

    def _free_name(self, tensor: Tensor) -> str:
        taken = {*self.axes, *(each.name for each in self.inputs)}
        return f"{tensor.name}_out" if tensor.name in taken else tensor.name

    # The reference -------------------------------------------------------------------------

    def _reference(self) -> Reference | None:
        if self.found is None:
            return None
        integers = [each.name for each in self.inputs if each.integer]
        floats = [each.name for each in self.inputs if not each.integer]
        return reference_of(
            self.found,
            tensors=[*floats, *integers],
            axes=list(self.axes),
            numbers=self._normalized_shape() | self._fixed() | dict(self.numbers),
            symbols={
                str(substitute(name, self.recognition.dims)): sizes
                for name, sizes in self.interface.symbols.items()
            },
            updated={n: self.outputs[n] for n in self.inouts if self.found.updates},
        )

    def _fixed(self) -> dict[str, str]:
        """Arguments that are no axes: the reference may have another default."""
        return {
            name: self._list(each) if isinstance(each.value, list) else constant(each.value)
            for name, each in self.arguments.items()
            if name not in self.axes and each.kind in ("other", "flag", "size")
            if isinstance(each.value, bool | int | float | list)
        }

    def _normalized_shape(self) -> dict[str, str]:
        """The argument `normalized_shape` of PyTorch's norms."""
        last = next((each.shape[-1] for each in self.inputs if len(each.shape) > 1), None)
        return {} if last is None else {"normalized_shape": f"[{last}]"}

    def _stub(self) -> Iterator[str]:
        yield "The same in plain PyTorch, called in float64. It may take any axis by name:"
        yield f"    def reference({', '.join(item.name for item in self.inputs)}):"
        for item in self.inputs:
            yield f"        # {item.name}: [{', '.join(map(str, item.shape))}]"
        yield f"        return {', '.join(self.outputs.values())}"

    # The call ------------------------------------------------------------------------------

    def _compile(self) -> Iterator[Line]:
        for item in self.interface.arguments:
            value = item.name if item.name in self.axes else constant(item.value)
            value = quoted(self.numbers.get(item.name, value))
            yield Line(item.name, value if value[:2] != '""' else value[1:-1])

    def _call(self) -> tuple[str, ...] | tuple[Line, ...] | None:
        interface = self.interface
        if interface.factory:
            return tuple(self._passed(each) for each in interface.parameters)
        values = [
            Line(each.name, self._passed(each))
            for each in interface.tensors
            if each.name not in interface.module
        ] + [
            Line(each.name, self._value(each)) for each in interface.arguments if self._given(each)
        ]  # fmt: skip
        order = [each.name for each in self.target.parameters]
        values.sort(key=lambda line: order.index(line.key))
        if self.target.positional:
            return tuple(line.value for line in values)
        if not interface.changed and all(line.key == line.value for line in values):
            return None
        return tuple(values)

    def _passed(self, each: Tensor | Number) -> str:
        name = each.name
        if name in self.inouts:
            return f"{{inout: {name}, output: {self.outputs[name]}}}"
        if name in self.outputs and name in self.interface.uses.added:
            return f"{{output: {self.outputs[name]}, fill: zeros}}"
        return quoted(self.numbers.get(name, self.outputs.get(name, name)))

    def _given(self, argument: Argument) -> bool:
        return self.target.positional or argument.name in self.axes or not argument.default

    def _value(self, argument: Argument) -> str:
        if argument.name in self.axes:
            return argument.name
        if isinstance(argument.value, list):
            return quoted(self._list(argument))
        return quoted(self.numbers.get(argument.name, constant(argument.value)))

    def _list(self, argument: Argument) -> str:
        """A list with the symbols that have its numbers in all calls."""
        symbols = {column: name for name, column in reversed([*self.interface.symbols.items()])}
        parts = []
        for column in zip(*argument.values, strict=False):
            # A small number that is a size once may be so by chance.
            small = len({*column}) == 1 and (type(column[0]) is not int or column[0] <= 8)
            part = column[0] if small else symbols.get(column, column[0])
            parts.append(str(substitute(part, self.recognition.dims)))
        return f"[{', '.join(parts)}]"

    def _returns(self) -> tuple[str, ...] | tuple[Line, ...]:
        interface = self.interface
        if interface.factory:
            written = [each.name for each in interface.outputs if each.name not in self.inouts]
            return tuple(self.outputs[name] for name in written)
        paths = dict(interface.paths)
        if any(not path.isdigit() for path in paths.values()):
            return tuple(Line(self.outputs[name], path) for name, path in paths.items())
        ordered = sorted(paths, key=lambda name: int(paths[name]))
        return tuple(self.outputs[name] for name in ordered) if len(ordered) > 1 else ()

    # Axes ----------------------------------------------------------------------------------

    def _axes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        dimensions = dict(self._dimensions())
        interface = self.interface
        followed = {each.dtype_of for each in (*interface.tensors, *interface.results)}
        for name in sorted(filter(None, followed - self.arguments.keys())):
            yield name, tuple(interface.dtypes)
        for item in self.arguments.values():
            if item.default and item in interface.construct and item.name not in dimensions:
                continue
            values = self._argument_values(item, dimensions, followed)
            if values:
                yield item.name, values
        for name, places in dimensions.items():
            if name not in self.arguments:
                yield name, self._sizes(name, places)
        for packing in self.recognition.packings:
            if packing.side in (None, "q"):
                sides = [each for each in self.recognition.packings if each.axis == packing.axis]
                yield packing.axis, tuple(lengths(sides))
        for scalar in interface.parameters:
            if isinstance(scalar, Number) and scalar.name not in self.numbers:
                value = "0.5" if "float" in scalar.dtype else "1"
                yield scalar.name, (value,)
                self.remarks[scalar.name] = "a scalar argument of the kernel"
        taken = {*self.arguments, *dimensions, *(item.name for item in interface.parameters)}
        floats = any("float" in item.dtype and item.shape for item in interface.tensors)
        if floats and "values" not in taken:
            whole = any(each.integer for each in interface.outputs)
            yield "values", _WITHOUT_TIES if whole else _VALUES

    def _affordable(self, axes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """The axes with the half of the largest sizes of tensors of more than `_MOST_ELEMENTS`."""
        for tensor in self.inputs:
            size = " * ".join(f"({each})" for each in tensor.shape)
            named = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", size), 1)
            own = [name for name in named if all(map(str.isdigit, axes.get(name, "-")))]
            while own:
                most = {name: max(map(int, axes[name])) for name in own}
                largest = max(own, key=lambda name: most[name])
                try:
                    fits = Expression(size).evaluate(named | most) <= _MOST_ELEMENTS
                except ExpressionError:  # of lengths
                    break
                if fits or most[largest] == 1:
                    break
                half = str(most[largest] // 2)
                values = (v if int(v) < most[largest] else half for v in axes[largest])
                axes[largest] = tuple(dict.fromkeys(values))
        return axes

    def _dimensions(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """The symbols and arguments that are dimensions of tensors, and where they occur."""
        places: dict[str, list[tuple[str, int]]] = {}
        for tensor in (*self.interface.tensors, *self.interface.results):
            role = self.recognition.roles.get(tensor.name)
            if role is not None and role.key != "between":
                continue
            for dim, size in enumerate(tensor.shape):
                for name in re.findall(r"[A-Za-z_]\w*", str(size)):
                    if name not in self.recognition.dims and name != "ceildiv":
                        places.setdefault(name, []).append((tensor.name, dim))
        for role in self.recognition.roles.values():
            if isinstance(role.page_size, str) and role.page_size not in self.recognition.dims:
                places.setdefault(role.page_size, [])
        yield from places.items()

    def _argument_values(
        self, item: Argument, dimensions: Mapping[str, Any], followed: set[str | None]
    ) -> tuple[str, ...]:
        name, value = item.name, item.value
        if name in self.numbers or isinstance(value, list):
            return ()
        seen = tuple(dict.fromkeys(_axis_value(each) for each in item.values))
        if item.kind == "dtype":
            of_inputs = self.interface.factory or name in {t.dtype_of for t in self.inputs}
            if name in followed:
                return (self.interface.dtypes if of_inputs else seen) or (str(value),)
            return () if self.interface.factory or item.default else seen
        if name in dimensions:
            return self._sizes(name, dimensions[name])
        if item.kind == "flag":
            other = str(not value).lower()
            return tuple(sorted({*seen, constant(value), *([other] if name in self.takes else [])}))
        if name == "ignore_index":
            return ("-1",)
        if item.kind in ("tile", "setting") and self.interface.factory:
            return ()
        wanted = name in self.takes or not self.interface.factory
        if len(seen) > 1:
            return seen
        if item.kind == "size" and (wanted or not item.default):
            small = isinstance(value, int) and 1 < value <= 8 and name in self.takes
            return ("1", str(value)) if small else (str(value),)
        if wanted and value is not None and (not item.default or name in self.takes):
            return (str(value),)
        return ()

    def _sizes(self, name: str, places: list[tuple[str, int]]) -> tuple[str, ...]:
        recorded = self.interface.symbols.get(name, ())
        argument = self.arguments.get(name)
        traced = argument.value if argument is not None and self.interface.factory else None
        traced = None if recorded else traced
        tiles = [self.interface.uses.tile(tensor, dim) for tensor, dim in places]
        # A step of the whole dimension is not a tile.
        known = [tile for tile in tiles if tile is not None and tile not in (traced, *recorded)]
        own = [
            each.value
            for each in self.interface.arguments
            if each.kind == "tile" and each.name.lower().endswith(name.lower())
        ]
        tile = max(known, default=None) or next(iter(own), None)
        if tile is None and traced is not None:
            every = [each.value for each in self.interface.arguments if each.kind == "tile"]
            tile = max(every, default=None)
        found = sizes(name, tile=tile, recorded=recorded)
        parts = {
            int(by)
            for each in (*self.interface.tensors, *self.interface.results)
            for by in re.findall(rf"\b{name} // (\d+)", " ".join(map(str, each.shape)))
        }
        if parts:  # multiples of what it is divided by
            whole = math.lcm(*parts)
            found = sorted({-(-size // whole) * whole for size in found})
        elif found == [1, 3] and any(name == total for total, _ in self._quotients()):
            found.append(6)  # a quotient of two
        if step := shared_factor(recorded):
            self.multiples[name] = step
        if not parts:
            self.ranges.add(name)
        return tuple(map(str, found))

    # The rest ------------------------------------------------------------------------------

    def _recorded(self) -> Iterator[tuple[str, Any]]:
        """The values of axes in the first call."""
        if self.interface.calls:
            yield from ((name, each.value) for name, each in self.arguments.items())
            yield from ((name, sizes[0]) for name, sizes in self.interface.symbols.items())

    def _where(self) -> Iterator[tuple[str, str]]:
        for packing in self.recognition.packings:
            if self.interface.factory and packing.rows is not None:
                yield f"sum({packing.expression}) > 0", NO_ROWS
        for total, each in sorted(set(self._quotients())):
            yield f"{total} % {each} == 0", f"{total} // {each} is a dimension"

    def _quotients(self) -> Iterator[tuple[str, str]]:
        """Two arguments whose quotient is a dimension, such as heads and groups."""
        results = () if self._told_by_reference else self.interface.results
        for tensor in (*self.interface.tensors, *results):
            for size in tensor.shape:
                if found := re.fullmatch(r"([A-Za-z_]\w*) // ([A-Za-z_]\w*)", str(size)):
                    yield found[1], found[2]

    def _tolerance(self) -> Iterator[Line]:
        for each in self.interface.outputs:
            if each.dtype in ("int8", "uint8"):
                yield Line(self.outputs[each.name], "{floor: 1}", "rounding may differ by one")

    def _fuzz(self) -> Iterator[Line]:
        by_axis: dict[str, list[Packing]] = {}
        for packing in self.recognition.packings:
            by_axis.setdefault(packing.axis, []).append(packing)
        others = []
        for axis, sides in by_axis.items():
            tile = max((each.tile for each in sides if each.tile), default=0)
            most = 2 * (tile or 24) + 16
            parts = ["sequences: 1..6", f"length: 0..{most}"]
            parts += [f"around: [{tile}]"] if tile else []
            if len(sides) == 2:
                parts.append("k: longer" if sides[1].rows is None else "k: independent")
            if axis == "seqlens":
                yield Line(axis, f"{{{', '.join(parts)}}}")
            else:
                others.append(f"{axis}: {{{', '.join(parts)}}}")
        if others:
            yield Line("axes", f"{{{', '.join(others)}}}")
        if by_axis:
            yield Line("examples", "{quick: 5, nightly: 200}")
        else:
            yield from fuzz_lines({n: v for n, v in self.axes.items() if n in self.ranges})

    def _recognition_notes(self) -> Iterator[str]:
        for name, role in self.recognition.roles.items():
            key = role.key.replace("_", " ")
            of = f"{role.of[0]} and {role.of[1]}" if isinstance(role.of, tuple) else role.of
            yield f"{name}: {key} {of}"
        for name, text in self.recognition.numbers.items():
            yield f"{name}: {text}"
        grads = [each.name for each in self.inputs if each.grad and not self.interface.factory]
        if grads:
            yield f"gradients of {', '.join(grads)}"
