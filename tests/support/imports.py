"""Imports of Python source: which modules of a package a module imports, and where."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Import:
    """One module that a module imports.

    Attributes:
        module: dotted name of the imported module.
        function: qualified name of the function that imports it, such as `Dataset.report`; empty at module level.
    """

    module: str
    function: str = ""


@dataclass(frozen=True)
class Package:
    """A package whose root loads public names lazily.

    Attributes:
        name: name of the root.
        modules: dotted names of all modules, packages included.
        public: name that the root loads -> the module that it comes from.
    """

    name: str
    modules: Collection[str]
    public: Mapping[str, str]

    def imports(self, source: str, module: str) -> frozenset[Import]:
        """Returns the modules of the package that a module imports.

        Imports inside functions count, and calls of `import_module` with a text. Imports for type checking do not. A
        public name of the root counts as an import of the root, and of the module that the name comes from.

        Args:
            source: source of the module.
            module: dotted name of the module.
        """
        tree = ast.parse(source)
        nodes = list(_nodes(tree, ""))
        roots = {name for node, _ in nodes for name in self._names_of_root(node)}
        found = {Import(name, function) for node, function in nodes for name in self._imported(node, roots)}
        return frozenset(each for each in found if each.module != module)

    def _names_of_root(self, node: ast.AST) -> Iterator[str]:
        """Yields the names that an import binds to the root."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == self.name and (alias.asname is None or alias.name == self.name):
                    yield alias.asname or self.name

    def _imported(self, node: ast.AST, roots: Collection[str]) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._resolved(alias.name)
        elif isinstance(node, ast.ImportFrom):  # ruff refuses relative imports
            for alias in node.names:
                yield from self._resolved(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Attribute) and (chain := _chain(node)) and chain[0] in roots:
            yield from self._resolved(".".join([self.name, *chain[1:]]))
        elif isinstance(node, ast.Call) and node.args and _last_name(node.func) in ("import_module", "__import__"):
            yield from self._resolved(str(getattr(node.args[0], "value", "")))

    def _resolved(self, name: str) -> Iterator[str]:
        """Yields the modules that a dotted name stands for."""
        root, _, rest = name.partition(".")
        if root != self.name:
            return
        parts = name.split(".")
        longest = max(n for n in range(1, len(parts) + 1) if n == 1 or ".".join(parts[:n]) in self.modules)
        yield ".".join(parts[:longest])
        if longest == 1 and (public := self.public.get(rest.split(".")[0])):
            yield public


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """Yields each node that runs, and the qualified name of its function or class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _last_name(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield other, function
                yield from _nodes(other, function)
            continue
        yield child, function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _nodes(child, f"{function}.{child.name}".lstrip("."))
        else:
            yield from _nodes(child, function)


def _last_name(node: ast.expr) -> str | None:
    """Returns `c` of the expressions `c` and `a.b.c`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _chain(node: ast.Attribute) -> list[str]:
    """Returns the names of `a.b.c`; none if it does not begin with a name."""
    names = [node.attr]
    value: ast.expr = node.value
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    return [value.id, *reversed(names)] if isinstance(value, ast.Name) else []
