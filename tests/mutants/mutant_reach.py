"""Which definitions of the kernels an entry reaches: what a change affects, and its tests.

Read from the source, by names: a definition (a function, class or constant of a module) reaches
the definitions that it names, in its own module and in those it imports from, and so on. A module
that is handed on as a value is reached as a whole. Names of a package that it only hands on are
followed to where they are defined.
"""

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mutant_catalog import KERNELS, Mutant

__all__ = ["Sources"]

PACKAGE = "tlmatrix_kernels"


@dataclass
class _Module:
    """Top-level definitions of a module, and what its other names stand for."""

    name: str
    package: bool
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Name to (module, attribute), or (module, None) where it is a module."""


class Sources:
    """The kernels' source, read once."""

    def __init__(self, folder: Path = KERNELS) -> None:
        self._folder = folder
        self._follows: dict[tuple[str, str], set[tuple[str, str]]] = {}

    @cached_property
    def _modules(self) -> dict[str, _Module]:
        modules = {}
        for path in sorted(self._folder.rglob("*.py")):
            parts = path.relative_to(self._folder).with_suffix("").parts
            package = parts[-1] == "__init__"
            name = ".".join((PACKAGE, *(parts[:-1] if package else parts)))
            modules[name] = _Module(name, package)
        for module in modules.values():
            self._read(module, modules)
        return modules

    def _path(self, module: str, *, package: bool) -> Path:
        parts = module.split(".")[1:]
        return self._folder.joinpath(*parts, "__init__.py") if package else (
            self._folder.joinpath(*parts).with_suffix(".py")
        )  # fmt: skip

    def _read(self, module: _Module, modules: dict[str, _Module]) -> None:
        tree = ast.parse(self._path(module.name, package=module.package).read_text())
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    target = (whole, None) if whole in modules else (node.module, alias.name)
                    module.imports[alias.asname or alias.name] = target
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                module.definitions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            module.definitions[name.id] = node

    def _resolve(self, module: str, name: str) -> set[tuple[str, str]]:
        """The definitions that a name of a module stands for."""
        found = self._modules[module]
        if name in found.definitions:
            return {(module, name)}
        if name not in found.imports:
            return set()
        target, attribute = found.imports[name]
        if attribute is not None:
            return self._resolve(target, attribute)
        return {(target, each) for each in self._modules[target].definitions}

    def _named(self, module: str, node: ast.stmt) -> set[tuple[str, str]]:
        found = set()
        followed = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                target, attribute = self._modules[module].imports.get(part.value.id, (None, ""))
                if target is not None and attribute is None:  # a module's attribute, not all of it
                    found |= self._resolve(target, part.attr)
                    followed.add(id(part.value))
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and id(part) not in followed:
                found |= self._resolve(module, part.id)
        return found

    def reached(self, entry: str) -> frozenset[tuple[str, str]]:
        """All definitions, (module, name), that `package.module:name` reaches, its own included."""
        module, _, name = entry.partition(":")
        waiting = self._resolve(module, name)
        if not waiting:
            raise LookupError(f"{entry}: no such definition in {self._folder}")
        found: set[tuple[str, str]] = set()
        while waiting:
            module, name = definition = waiting.pop()
            if definition in found:
                continue
            found.add(definition)
            if definition not in self._follows:
                node = self._modules[module].definitions[name]
                self._follows[definition] = self._named(module, node)
            waiting |= self._follows[definition] - found
        return frozenset(found)

    def changed(self, mutant: Mutant) -> frozenset[tuple[str, str]]:
        """The definitions whose lines the mutant edits; all of the file's, if none has them."""
        path = self._folder / mutant.file
        module = ".".join((PACKAGE, *Path(mutant.file).with_suffix("").parts))
        lines = mutant.lines(path.read_text())
        definitions = self._modules[module].definitions
        touched = {
            name
            for name, node in definitions.items()
            if _first_line(node) <= lines[-1] and lines[0] <= (node.end_lineno or node.lineno)
        }
        return frozenset((module, name) for name in (touched or definitions))


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])
