"""From what was recognized to a draft of the spec."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tlmatrix.commands.new import axes as axis_values
from tlmatrix.commands.new.drafts import Draft, Line
from tlmatrix.commands.new.observed import Number, Tensor
from tlmatrix.commands.new.recognized import recognize, substituted
from tlmatrix.commands.new.references import alike, matched, reference_of
from tlmatrix.commands.new.spec_text import quoted
from tlmatrix.commands.new.targets import find_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tlmatrix.commands.new.observed import Argument, Observed
    from tlmatrix.commands.new.recognized import Packing, Recognized
    from tlmatrix.commands.new.references import Reference
    from tlmatrix.commands.new.targets import Target

__all__ = ["constant", "draft_of", "spec_name", "summary_of"]

_VALUES = ("normal", "large", "zero_rows", "rising")
_WITHOUT_TIES = ("normal", "large")


def draft_of(target: Target, observed: Observed) -> Draft:
    """A draft of the spec of what was observed."""
    found = find_reference(target)
    if found is not None:
        observed = _with_names_of(observed, found[1])
    return _Writer(target, observed, recognize(observed), found).draft()


def spec_name(target: str) -> str:
    """What the spec is called."""
    return re.sub(r"\W+", "_", target.partition(":")[2].removesuffix(".apply"))


def summary_of(target: Target) -> str:
    """The first line of the docstring, or of that of its class, in quotes."""
    found = [target.written, target.owner, target.module]
    # Not what `inspect.getdoc` finds: a method would have its base class's.
    documents = [inspect.cleandoc(each.__doc__ or "") for each in found]
    document = next((each for each in documents if each), "")
    lines = document.strip().splitlines()
    line = lines[0] if lines else "What it does, in a sentence."
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'


def constant(value: Any) -> str:  # noqa: ANN401 - a default of the user's
    """A constant as an expression in YAML."""
    if value is None:
        return "none"
    return f"\"'{value}'\"" if isinstance(value, str) else str(value).lower()


def _with_names_of(observed: Observed, reference: Callable[..., Any]) -> Observed:
    """A traced kernel's parameters by the reference's names, where they differ in case only."""
    if not observed.factory:
        return observed
    names = list(inspect.signature(reference).parameters)
    taken = {each.name for each in observed.arguments} | {*observed.symbols}
    mine = [each.name for each in (*observed.parameters, *observed.results)]
    renames = {
        old: new
        for new, old in matched(names, mine).items()
        if new not in taken and alike(new, old)
    }
    renames = {name: renames.get(name, name) for name in mine}
    return replace(
        observed,
        parameters=tuple(replace(each, name=renames[each.name]) for each in observed.parameters),
        results=tuple(replace(each, name=renames[each.name]) for each in observed.results),
        mutated=frozenset(renames[name] for name in observed.mutated),
        accesses=observed.accesses.renamed(renames),
    )


class _Writer:
    def __init__(
        self,
        target: Target,
        observed: Observed,
        recognized: Recognized,
        found: tuple[str, Callable[..., Any]] | None,
    ) -> None:
        self.target = target
        self.observed = observed
        self.recognized = recognized
        self.found = found
        self.takes = set(inspect.signature(found[1]).parameters) if found else set()
        self.notes: list[str] = []
        self.remarks: dict[str, str] = {}
        every = (*observed.arguments, *observed.construct)
        self.arguments = {each.name: each for each in every}
        self.inouts = {name for name in observed.mutated if name in self.takes}
        self.inputs = [
            each
            for each in observed.tensors
            if each.name not in observed.mutated or each.name in self.inouts
        ]
        self.axes = dict(self._axes())
        self.outputs = {each.name: self._free_name(each) for each in observed.outputs}

    def draft(self) -> Draft:
        """All parts."""
        reference = self._reference()
        observed = self.observed
        for line in self._recognized_in_words():
            self.notes.append(line)
        if reference is not None and reference.difference:
            self.notes.append(reference.difference)
        if reference is None:
            self.notes.append(
                f"no reference beside {observed.target}: write one, or name one, before it can run"
            )
        return Draft(
            name=spec_name(observed.target),
            summary=summary_of(self.target),
            target=observed.target,
            factory=observed.factory,
            inputs=tuple(self._input(each) for each in self.inputs),
            outputs=tuple(self._output(each) for each in observed.outputs),
            reference=reference,
            stub=() if reference is not None else tuple(self._stub()),
            factory_args=tuple(self._compile()) if observed.factory else (),
            constructor_args=tuple(
                Line(each.name, self._value(each))
                for each in observed.construct
                if each.name in self.axes or not each.default
            ),
            call=self._call(),
            returns=self._returns(),
            axes=self.axes,
            remarks=self.remarks,
            constraints=tuple(self._where()),
            tolerance=tuple(self._tolerance()),
            fuzz=tuple(self._fuzz()),
            notes=tuple(self.notes),
        )

    # Tensors -------------------------------------------------------------------------------

    def _input(self, tensor: Tensor) -> Line:
        role = self.recognized.roles.get(tensor.name)
        dtype = f"${tensor.dtype_of}" if tensor.dtype_of else tensor.dtype
        shape = f"shape: [{self._shape(tensor)}], dtype: {dtype}"
        if role is None:
            grad = ", grad: true" if tensor.grad and not self.observed.factory else ""
            remark = "which whole numbers? between: [least, largest]" if tensor.integer else ""
            return Line(tensor.name, f"{{{shape}{grad}}}", remark)
        if isinstance(role.of, tuple):
            least, largest = role.of
            return Line(tensor.name, f"{{{shape}, between: [{least}, {quoted(largest)}]}}")
        parts = [f"{role.key}: {quoted(role.of)}"]
        if role.page_size is not None:
            size = substituted(role.page_size, self.recognized.dims)
            parts.append(f"page_size: {quoted(str(size))}")
        if tensor.dtype != "int32":
            parts.append(f"dtype: {tensor.dtype}")
        return Line(tensor.name, f"{{{', '.join(parts)}}}")

    def _shape(self, tensor: Tensor) -> str:
        dims = self.recognized.dims
        return ", ".join(quoted(str(substituted(size, dims))) for size in tensor.shape)

    def _output(self, tensor: Tensor) -> Line:
        name = self.outputs[tensor.name]
        given = tensor.name in self.observed.mutated
        first = next((each for each in self.inputs if each.dtype_of or not each.integer), None)
        dtype = f"${tensor.dtype_of}" if tensor.dtype_of else tensor.dtype
        own = f"${first.dtype_of}" if first and first.dtype_of else first and first.dtype
        parts = []
        if (given and tensor.name not in self.inouts) or self.observed.factory or not self.found:
            parts.append(f"shape: [{self._shape(tensor)}]")
        elif shape := self._packed_shape(tensor):
            parts.append(f"shape: [{', '.join(map(quoted, shape))}]")
        if dtype != own or (self.observed.factory and parts):
            parts.append(f"dtype: {dtype}")
        used = self.observed.accesses
        both = tensor.name in used.read and tensor.name in used.written and given
        starts = both and tensor.name not in self.inouts and self.observed.factory
        return Line(name, f"{{{', '.join(parts)}}}" if parts else "", "starts as NaN" * starts)

    def _packed_shape(self, tensor: Tensor) -> list[str]:
        """The shape of a result of a packed problem; nothing where a size may mean two things."""
        known: dict[int, set[str]] = {}
        for symbol, size in self.observed.sizes:
            text = substituted(symbol, self.recognized.dims)
            known.setdefault(size, set()).add(str(text))
        for packing in self.recognized.packings:
            of, lengths = packing.expression, packing.lengths
            if lengths:
                known.setdefault(len(lengths), set()).add(f"len({packing.axis})")
                known.setdefault(max(lengths), set()).add(f"max({of})")
        found = [known.get(size, set()) for size in tensor.sizes]
        if not self.recognized.packings or any(len(each) != 1 for each in found):
            return []
        return [text for each in found for text in each]

    def _free_name(self, tensor: Tensor) -> str:
        taken = {*self.axes, *(each.name for each in self.inputs)}
        return f"{tensor.name}_out" if tensor.name in taken else tensor.name

    # The reference -------------------------------------------------------------------------

    def _reference(self) -> Reference | None:
        if self.found is None:
            return None
        target, function = self.found
        integers = [each.name for each in self.inputs if each.integer]
        floats = [each.name for each in self.inputs if not each.integer]
        return reference_of(
            target,
            function,
            tensors=[*floats, *integers],
            axes=list(self.axes),
            numbers=self._shapes_in_words() | dict(self.recognized.numbers),
        )

    def _shapes_in_words(self) -> dict[str, str]:
        """What PyTorch's norms call the dimensions that they are taken over."""
        last = next((each.shape[-1] for each in self.inputs if len(each.shape) > 1), None)
        return {} if last is None else {"normalized_shape": f"[{last}]"}

    def _stub(self) -> Iterator[str]:
        yield "The same in plain PyTorch, called in float64. It may also take any axis by name:"
        yield f"    def reference({', '.join(item.name for item in self.inputs)}):"
        for item in self.inputs:
            yield f"        # {item.name}: [{', '.join(map(str, item.shape))}]"
        yield f"        return {', '.join(self.outputs.values())}"

    # The call ------------------------------------------------------------------------------

    def _compile(self) -> Iterator[Line]:
        for item in self.observed.arguments:
            value = item.name if item.name in self.axes else constant(item.value)
            value = quoted(self.recognized.numbers.get(item.name, value))
            yield Line(item.name, value if value[:2] != '""' else value[1:-1])

    def _call(self) -> tuple[str, ...] | tuple[Line, ...] | None:
        observed = self.observed
        if observed.factory:
            return tuple(self._passed(each) for each in observed.parameters)
        values = [
            Line(each.name, self._passed(each))
            for each in observed.tensors
            if each.name not in observed.module
        ] + [
            Line(each.name, self._value(each)) for each in observed.arguments if self._given(each)
        ]  # fmt: skip
        order = [each.name for each in self.target.parameters]
        values.sort(key=lambda line: order.index(line.key))
        if self.target.positional:
            return tuple(line.value for line in values)
        if not observed.mutated and all(line.key == line.value for line in values):
            return None
        return tuple(values)

    def _passed(self, each: Tensor | Number) -> str:
        name = each.name
        if name in self.inouts:
            return f"{{inout: {name}, output: {self.outputs[name]}}}"
        return quoted(self.recognized.numbers.get(name, self.outputs.get(name, name)))

    def _given(self, argument: Argument) -> bool:
        return self.target.positional or argument.name in self.axes or not argument.default

    def _value(self, argument: Argument) -> str:
        if argument.name in self.axes:
            return argument.name
        return quoted(self.recognized.numbers.get(argument.name, constant(argument.value)))

    def _returns(self) -> tuple[str, ...] | tuple[Line, ...]:
        observed = self.observed
        if observed.factory:
            written = [each.name for each in observed.outputs if each.name not in self.inouts]
            return tuple(self.outputs[name] for name in written)
        paths = dict(observed.paths)
        if any(not path.isdigit() for path in paths.values()):
            return tuple(Line(self.outputs[name], path) for name, path in paths.items())
        ordered = sorted(paths, key=lambda name: int(paths[name]))
        return tuple(self.outputs[name] for name in ordered) if len(ordered) > 1 else ()

    # Axes ----------------------------------------------------------------------------------

    def _axes(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        dimensions = dict(self._dimensions())
        observed = self.observed
        followed = {each.dtype_of for each in (*observed.tensors, *observed.results)}
        if "dtype" in followed and "dtype" not in self.arguments:
            yield "dtype", tuple(observed.dtypes)
        for item in self.arguments.values():
            values = self._argument_values(item, dimensions, followed)
            if values:
                yield item.name, values
        for name, places in dimensions.items():
            if name not in self.arguments:
                yield name, self._sizes(name, places)
        for packing in self.recognized.packings:
            if packing.side in (None, "q"):
                sides = [each for each in self.recognized.packings if each.axis == packing.axis]
                yield packing.axis, tuple(axis_values.lengths(sides))
        for scalar in observed.parameters:
            if isinstance(scalar, Number) and scalar.name not in self.recognized.numbers:
                value = "0.5" if "float" in scalar.dtype else "1"
                yield scalar.name, (value,)
                self.remarks[scalar.name] = "a number that the kernel takes"
        taken = {*self.arguments, *dimensions, *(item.name for item in observed.parameters)}
        floats = any("float" in item.dtype and item.shape for item in observed.tensors)
        if floats and "values" not in taken:
            whole = any(each.integer for each in observed.outputs)
            yield "values", _WITHOUT_TIES if whole else _VALUES

    def _dimensions(self) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """The symbols and arguments that are free dimensions, and where they occur."""
        places: dict[str, list[tuple[str, int]]] = {}
        for tensor in (*self.observed.tensors, *self.observed.results):
            role = self.recognized.roles.get(tensor.name)
            if role is not None and role.key != "between":
                continue
            for dim, size in enumerate(tensor.shape):
                for name in re.findall(r"[A-Za-z_]\w*", str(size)):
                    if name not in self.recognized.dims and name != "ceildiv":
                        places.setdefault(name, []).append((tensor.name, dim))
        for role in self.recognized.roles.values():
            if isinstance(role.page_size, str) and role.page_size not in self.recognized.dims:
                places.setdefault(role.page_size, [])
        yield from places.items()

    def _argument_values(
        self, item: Argument, dimensions: Mapping[str, Any], followed: set[str | None]
    ) -> tuple[str, ...]:
        name, value = item.name, item.value
        if name in self.recognized.numbers:
            return ()
        if item.kind == "dtype":
            followed_here = name in followed or not self.observed.factory
            return (self.observed.dtypes or (str(value),)) if followed_here else ()
        if name in dimensions:
            return self._sizes(name, dimensions[name])
        if item.kind == "flag":
            other = str(not value).lower()
            return (constant(value), *([other] if name in self.takes else []))
        if name == "ignore_index":
            return ("-1",)
        if item.kind in ("tile", "setting") and self.observed.factory:
            return ()
        wanted = name in self.takes or not self.observed.factory
        if item.kind == "size" and (wanted or not item.default):
            small = isinstance(value, int) and 1 < value <= 8 and name in self.takes
            return ("1", str(value)) if small else (str(value),)
        if wanted and value is not None and (not item.default or name in self.takes):
            return (str(value),)
        return ()

    def _sizes(self, name: str, places: list[tuple[str, int]]) -> tuple[str, ...]:
        recorded = dict(self.observed.sizes).get(name)
        argument = self.arguments.get(name)
        traced = argument.value if argument is not None and self.observed.factory else None
        tiles = [self.observed.accesses.tile(tensor, dim) for tensor, dim in places]
        whole = traced if traced is not None else recorded
        known = [
            tile for tile in tiles if tile is not None and (traced is None or tile < traced)
        ]  # A step as wide as the dimension is no tile of it.
        own = [
            each.value
            for each in self.observed.arguments
            if each.kind == "tile" and each.name.lower().endswith(name.lower())
        ]
        tile = max(known, default=None) or next(iter(own), None)
        if tile is None and traced is not None:
            every = [each.value for each in self.observed.arguments if each.kind == "tile"]
            tile = max(every, default=None)
        free = name in self.observed.free or (self.observed.factory and whole is None)
        if self.observed.factory:
            free = True
        halved = any(
            f"{name} // " in str(size) for each in self.observed.tensors for size in each.shape
        )
        found = axis_values.sizes(name, tile=tile, recorded=recorded, free=free and not halved)
        return tuple(map(str, found))

    # The rest ------------------------------------------------------------------------------

    def _where(self) -> Iterator[tuple[str, str]]:
        for packing in self.recognized.packings:
            if self.observed.factory and packing.rows is not None:
                yield f"sum({packing.expression}) > 0", "a caller launches no kernel without rows"

    def _tolerance(self) -> Iterator[Line]:
        for each in self.observed.outputs:
            if each.dtype in ("int8", "uint8"):
                yield Line(self.outputs[each.name], "{floor: 1}", "rounding may go either way")

    def _fuzz(self) -> Iterator[Line]:
        by_axis: dict[str, list[Packing]] = {}
        for packing in self.recognized.packings:
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

    def _recognized_in_words(self) -> Iterator[str]:
        for name, role in self.recognized.roles.items():
            key = role.key.replace("_", " ")
            of = f"{role.of[0]} to {role.of[1]}" if isinstance(role.of, tuple) else role.of
            yield f"{name}: {key} {of}"
        for name, text in self.recognized.numbers.items():
            yield f"{name}: {text}"
        grads = [each.name for each in self.inputs if each.grad and not self.observed.factory]
        if grads:
            yield f"gradients of {', '.join(grads)}"
