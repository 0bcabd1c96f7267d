"""Drafts the spec of an interface."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tlmatrix.draft.axes import AxesOfDraft, quotients
from tlmatrix.draft.references import parameters_of, reference_of
from tlmatrix.draft.roles import longest_of, substitute
from tlmatrix.draft.text import Draft, constant, written
from tlmatrix.spec.model.calling import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tlmatrix.draft.interface import Argument, Interface, Number, Tensor
    from tlmatrix.draft.references import Found
    from tlmatrix.draft.roles import Recognition
    from tlmatrix.draft.targets import Target
    from tlmatrix.draft.text import Reference

NO_ROWS = "callers launch no kernel without rows"


class BuiltIn(NamedTuple):
    """A built-in problem, which brings its inputs and its reference.

    Attributes:
        names: its name or expression for each input, scalar and argument of the code under test.
        outputs: its name of each output.
        parts: those of a `Draft` that it sets, such as `problem` and `axes`.
    """

    names: Mapping[str, Any]
    outputs: Mapping[str, str]
    parts: Mapping[str, Any]


def draft_of(
    target: Target,
    interface: Interface,
    recognition: Recognition,
    found: Found | None,
    problem: BuiltIn | None = None,
) -> Draft:
    """The draft of a spec, with a built-in problem or a declared one."""
    writer = _Writer(target, interface, recognition, found, problem)
    return writer.with_problem(problem) if problem is not None else writer.declared()


def _summary_of(target: Target) -> str:
    """The first line of the docstring of the function, class or module."""
    found = [target.written, target.owner, target.module]
    # Not `inspect.getdoc`, which returns the docstring of a base class.
    documents = [inspect.cleandoc(each.__doc__ or "") for each in found]
    lines = next((each for each in documents if each), "").strip().splitlines()
    return lines[0] if lines else "One sentence about the operator."


class _Writer:
    def __init__(
        self,
        target: Target,
        interface: Interface,
        recognition: Recognition,
        found: Found | None,
        problem: BuiltIn | None,
    ) -> None:
        self.target = target
        self.interface = interface
        self.recognition = recognition
        self.found = found
        self.judged = problem is not None
        takes = set((found and parameters_of(found.function)) or ())
        every = (*interface.arguments, *interface.construct)
        column = next(iter(found.passed.values()), ()) if found is not None else ()
        compared = [each is not ... for each in column] if len(column) == interface.calls else []
        self.first = compared.index(True) if compared else 0
        self.arguments = {each.name: self._in_first(each) for each in every}
        added = interface.uses.added if interface.factory else frozenset()
        # Without a reference nothing tells which elements an operator must write.
        any_of = found is None and problem is None and interface.calls and not interface.factory
        self.inouts = {
            name
            for name in interface.changed - interface.scratch
            if any_of or name in takes or (name in interface.uses.updated and name not in added)
        }
        self.inputs = [
            each
            for each in interface.tensors
            if each.name not in interface.changed or each.name in self.inouts | interface.scratch
        ]
        if problem is not None:
            self.numbers, self.outputs = dict(problem.names), dict(problem.outputs)
            self.axes = dict(problem.parts["axes"])
            return
        self.numbers = {**recognition.numbers, **interface.tied_dtypes}
        self.chosen = AxesOfDraft(
            interface, recognition, self.inputs, self.numbers, takes, compared
        )
        self.axes = self.chosen.axes
        self.outputs = {each.name: self._free_name(each) for each in interface.outputs}

    def _common(self) -> Draft:
        """What drafts of both kinds of problems have."""
        interface = self.interface
        every = {each.name: self._value(each) for each in self.arguments.values()}
        return Draft(
            re.sub(r"\W+", "_", self.target.name.removesuffix(".apply")),
            _summary_of(self.target),
            self.target.text,
            factory=interface.factory,
            factory_args={e.name: every[e.name] for e in interface.arguments}
            if interface.factory
            else {},
            constructor_args={e.name: every[e.name] for e in interface.construct if self._given(e)},
            returns=self._returns(),
            axes=self.axes,
        )

    def with_problem(self, problem: BuiltIn) -> Draft:
        """The draft with a built-in problem."""
        call, name = self._call(), problem.parts["problem"]
        plain = isinstance(call, dict) and _is_plain(call)
        note = f"uses the built-in problem {name}, with its inputs and float64 reference"
        kept = None if plain else call
        return replace(self._common(), **problem.parts, call=kept, notes=(note,))

    def declared(self) -> Draft:
        """The draft with a declared problem."""
        interface = self.interface
        reference = self._reference()
        self.judged = reference is not None and not reference.missing
        call = self._call()
        plain = isinstance(call, dict) and not interface.changed and _is_plain(call)
        notes = list(self._recognition_notes())
        if reference is None:
            notes.append(f"no reference found for {self.target.text}: no value is compared")
        elif reference.difference:
            notes.append(reference.difference)
        unknown = [e for e in self.inputs if e.integer and e.name not in self.recognition.roles]
        words = ("set its range with between: [least, largest]", "the range of the recorded calls")
        remarks = {each.name: words[bool(self._recorded_range(each))] for each in unknown}
        bytes_ = [each.name for each in interface.outputs if each.dtype in ("int8", "uint8")]
        return replace(
            self._common(),
            inputs={each.name: self._input(each) for each in self.inputs},
            outputs={self.outputs[e.name]: self._output(e) for e in interface.outputs},
            reference=reference,
            stub=() if reference is not None else tuple(self._stub()),
            call=None if plain else call,
            remarks=self.chosen.remarks | remarks,
            constraints=tuple(self._constraints()),
            tolerance={self.outputs[name]: {"floor": 1} for name in bytes_},
            fuzz=self.chosen.fuzz(),
            multiples=self.chosen.multiples,
            recorded={name: each for name, each in self._recorded() if name in self.axes},
            ranges={e.name: found for e in self.inputs if (found := self._narrower_range(e))},
            guessed=bool(unknown) or not interface.calls,
            notes=tuple(notes),
        )

    # Tensors -------------------------------------------------------------------------------

    def _input(self, tensor: Tensor) -> dict[str, Any]:
        role = self.recognition.roles.get(tensor.name)
        found = {"shape": self._shape(tensor), "dtype": _dtype(tensor)}
        more = {"distinct": True} if tensor.distinct else {}
        if role is None and self._recorded_range(tensor):
            return found | {"between": self._recorded_range(tensor)} | more
        if role is None:
            grad = tensor.grad and not self.interface.factory
            return found | ({"grad": True} if grad else {})
        if isinstance(role.of, tuple):
            ends = [int(e) if e.lstrip("-").isdigit() else e for e in role.of]
            return found | {"between": ends} | more
        made: dict[str, Any] = {role.key: role.of}
        if role.page_size is not None:
            made["page_size"] = substitute(role.page_size, self.recognition.dims)
        return made | ({"dtype": tensor.dtype} if tensor.dtype != "int32" else {})

    def _narrower_range(self, tensor: Tensor) -> list[Any]:
        """The range that an integer tensor had in all calls, in that of its role.

        Or that of a floating-point tensor of one sign in all calls, such as scales; empty for one
        of two signs, and for one as large as data, of which any values are right.
        """
        role = self.recognition.roles.get(tensor.name)
        if tensor.integer:
            found = self._recorded_range(tensor)
            if role is None or not isinstance(role.of, tuple) or not found:
                return []
            least, most = (f"min({each}, {role.of[1]})" if each > 0 else each for each in found)
            return [least, most]
        if not tensor.limits:
            return []
        sizes = [math.prod(each.seen[0].shape) for each in (*self.inputs, tensor)]
        found = [min(e[0] for e in tensor.limits), max(e[1] for e in tensor.limits)]
        return found if 0 in found and 2 * sizes[-1] <= max(sizes) else []

    @staticmethod
    def _recorded_range(tensor: Tensor) -> list[int]:
        """The least and the largest number of an integer tensor in all calls; empty if unknown."""
        if not tensor.integer or not tensor.limits:
            return []
        found = [min(e[0] for e in tensor.limits), max(e[1] for e in tensor.limits)]
        return found if found[0] <= found[1] else []

    def _shape(self, tensor: Tensor) -> list[Any]:
        return [substitute(size, self.recognition.dims) for size in tensor.shape]

    def _output(self, tensor: Tensor) -> dict[str, Any]:
        given = tensor.name in self.interface.changed
        first = next((each for each in self.inputs if each.dtype_of or not each.integer), None)
        found: dict[str, Any] = {}
        if (given and tensor.name not in self.inouts) or not self._told_by_reference:
            found["shape"] = self._shape(tensor)
        elif shape := self._packed_shape(tensor):
            found["shape"] = shape
        other = first is None or _dtype(tensor) != _dtype(first)
        if other or (self.interface.factory and found):
            found["dtype"] = _dtype(tensor)
        return found

    @property
    def _told_by_reference(self) -> bool:
        """Whether a reference tells the shapes of results, which calls may show by chance."""
        return self.judged and (not self.interface.factory or self.interface.calls > 0)

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
        last = next((each.shape[-1] for each in self.inputs if len(each.shape) > 1), None)
        norms = {} if last is None else {"normalized_shape": f"[{last}]"}
        takes = parameters_of(self.found.function) or {}
        # Arguments that are no axes: the reference may have another default.
        fixed = {
            name: self._value(each)
            for name, each in self.arguments.items()
            if name not in self.axes and each.kind != "dtype"
            if isinstance(each.value, bool | int | float | list)
            if name not in takes or takes[name].default != each.value
        }
        longest = {
            name: f"max({packing.expression})"
            for name in takes
            if (packing := longest_of(self.recognition.packings, name)) is not None
        }
        order = self.interface.order
        reference = reference_of(
            self.found,
            tensors=[*floats, *integers],
            axes=list(self.axes),
            numbers=norms | longest | fixed | self.numbers,
            symbols={
                str(substitute(name, self.recognition.dims)): sizes
                for name, sizes in self.interface.symbols.items()
            },
            arguments={n: e.values for n, e in self.arguments.items() if n in self.axes},
            updated={n: self.outputs[n] for n in self.inouts if self.found.updates},
            scratch=self.interface.scratch,
        )
        names = tuple(self.outputs.get(name, SKIPPED) for name in order)
        return replace(reference, returns=names if SKIPPED in order else ())

    def _stub(self) -> Iterator[str]:
        yield "The same in plain PyTorch, called in float64. It may take any axis by name:"
        yield f"    def reference({', '.join(item.name for item in self.inputs)}):"
        for item in self.inputs:
            yield f"        # {item.name}: [{', '.join(map(str, item.shape))}]"
        yield f"        return {', '.join(self.outputs.values())}"

    # The call ------------------------------------------------------------------------------

    def _call(self) -> dict[str, Any] | tuple[Any, ...]:
        interface = self.interface
        if interface.factory:
            return tuple(self._passed(each) for each in interface.parameters)
        passed = [each for each in interface.parameters if each.name not in interface.module]
        values = {each.name: self._passed(each) for each in passed}
        values |= {
            each.name: self._value(each) for each in interface.arguments if self._given(each)
        }
        order = [each.name for each in self.target.parameters]
        values = {name: values[name] for name in order if name in values}
        return tuple(values.values()) if self.target.positional else values

    def _passed(self, each: Tensor | Number) -> Any:  # noqa: ANN401 - a value of YAML
        name = each.name
        if name in self.inouts | self.interface.scratch:
            return {"inout": name, "output": self.outputs.get(name, SKIPPED)}
        if name in self.outputs and name in self.interface.uses.added:
            return {"output": self.outputs[name], "fill": "zeros"}
        return self.numbers.get(name, self.outputs.get(name, name))

    def _given(self, argument: Argument) -> bool:
        named = argument.name in self.axes or argument.name in self.numbers
        return self.target.positional or named or not argument.default

    def _value(self, argument: Argument) -> Any:  # noqa: ANN401 - a value of YAML
        if argument.name in self.axes:
            return argument.name
        if isinstance(argument.value, list):
            return self._list(argument)
        return self.numbers.get(argument.name, constant(argument.value))

    def _list(self, argument: Argument) -> str:
        """A list with the symbols that have its numbers in all calls, or lengths."""
        for packing in self.recognition.packings:
            if packing.lengths and packing.lengths == tuple(map(tuple, argument.values)):
                return packing.expression
        symbols = {column: name for name, column in reversed([*self.interface.symbols.items()])}
        parts = []
        lists = all(isinstance(each, list) for each in argument.values)
        for column in zip(*(argument.values if lists else [argument.value]), strict=False):
            # A small number that is a size once may be so by chance.
            small = len({*column}) == 1 and (type(column[0]) is not int or column[0] <= 8)
            part = column[0] if small else symbols.get(column, column[0])
            parts.append(written(substitute(part, self.recognition.dims)))
        return f"[{', '.join(parts)}]"

    def _returns(self) -> dict[str, str] | tuple[str, ...]:
        interface = self.interface
        paths = interface.paths
        if interface.factory:
            made = interface.changed - self.inouts - interface.scratch
            made |= {each.name for each in interface.results}
            order = [each.name for each in (*interface.tensors, *interface.results)]
            ordered = [name for name in order if name in made]
        elif any(not path.isdigit() for path in paths.values()):
            judged = {name: path for name, path in paths.items() if name in self.outputs}
            return {self.outputs[name]: path for name, path in judged.items()}
        else:
            ordered = sorted(paths, key=lambda name: int(paths[name]))
            ordered = ordered if len(ordered) > 1 else []
        return tuple(self.outputs.get(name, SKIPPED) for name in ordered)

    # The rest ------------------------------------------------------------------------------

    def _recorded(self) -> Iterator[tuple[str, Any]]:
        """The values of axes in the first call that was compared with the reference."""
        if self.interface.calls:
            yield from ((name, each.value) for name, each in self.arguments.items())
            yield from ((name, sizes[self.first]) for name, sizes in self.interface.symbols.items())

    def _in_first(self, argument: Argument) -> Argument:
        """An argument with its value in the first call that was compared with the reference."""
        value = argument.values[self.first] if self.interface.calls else argument.value
        return replace(argument, value=value)

    def _constraints(self) -> Iterator[tuple[str, str]]:
        for packing in self.recognition.packings:
            if self.interface.factory and packing.rows is not None:
                yield f"sum({packing.expression}) > 0", NO_ROWS
        for tensor in self.inputs:
            role = self.recognition.roles.get(tensor.name)
            if tensor.distinct and role is not None and isinstance(role.of, tuple):
                size = role.of[1].removesuffix(" - 1")
                yield f"{self._shape(tensor)[-1]} <= {size}", f"{tensor.name} has distinct numbers"
        results = () if self._told_by_reference else self.interface.results
        for total, each in sorted(quotients((*self.interface.tensors, *results))):
            yield f"{total} % {each} == 0", f"{total} // {each} is a dimension"

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


def _is_plain(call: Mapping[str, Any]) -> bool:
    """Whether all arguments have the names of parameters."""
    return all(name == value for name, value in call.items())


def _dtype(tensor: Tensor) -> str:
    return f"${tensor.dtype_of}" if tensor.dtype_of else tensor.dtype
