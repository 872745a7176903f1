"""Every advice that the errors of a package give, found in its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

#: Stands for a value in the text of an advice.
VALUE = "…"
#: Texts that are no advice: paths, names, separators.
_WORDS = re.compile(r"[A-Za-z]{2,}\W+[A-Za-z]{2,}|[a-z]{2,}.*--[a-z]+|--[a-z-]+ ")

_Function = ast.FunctionDef
_Place = tuple[str, tuple[_Function, ...], ast.expr]


@dataclass
class Advices:
    """The advices of a package: the texts of which the hints of its errors consist.

    A hint is an expression: of texts, constants, local names, arguments, and functions that return texts. Each text in
    it, or each f-string, is an advice. The same text in several places is one.

    Attributes:
        root: the folder that has the package.
        package: the folder of the package below `root`.
    """

    root: Path
    package: str
    _seen: set[int] = field(default_factory=set)

    @cached_property
    def _modules(self) -> dict[str, ast.Module]:
        paths = sorted((self.root / self.package).rglob("*.py"))
        names = (".".join(path.relative_to(self.root).with_suffix("").parts) for path in paths)
        return {
            name.removesuffix(".__init__"): ast.parse(path.read_text()) for name, path in zip(names, paths, strict=True)
        }

    @cached_property
    def _nodes(self) -> list[tuple[str, tuple[_Function, ...], ast.AST]]:
        """Returns each node with its module and the functions around it, the innermost last."""

        def below(name: str, around: tuple[_Function, ...], node: ast.AST) -> None:
            for child in ast.iter_child_nodes(node):
                found.append((name, around, child))
                below(name, (*around, child) if isinstance(child, _Function) else around, child)

        found: list[tuple[str, tuple[_Function, ...], ast.AST]] = []
        for name, module in self._modules.items():
            below(name, (), module)
        return found

    @cached_property
    def _assigned(self) -> dict[tuple[str, str], list[_Place]]:
        """Returns the values of each name or attribute of a module."""
        found: dict[tuple[str, str], list[_Place]] = {}
        for module, around, node in self._nodes:
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    pairs = [(target, node.value)]
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = list(zip(target.elts, node.value.elts, strict=True))
                    for each, value in pairs:
                        found.setdefault((module, _name(each)), []).append((module, around, value))
        return found

    @cached_property
    def _calls(self) -> dict[str, list[tuple[str, tuple[_Function, ...], ast.Call]]]:
        found: dict[str, list[tuple[str, tuple[_Function, ...], ast.Call]]] = {}
        for module, around, node in self._nodes:
            if isinstance(node, ast.Call):
                found.setdefault(_name(node.func), []).append((module, around, node))
        return found

    @cached_property
    def _imports(self) -> dict[tuple[str, str], tuple[str, str]]:
        return {
            (module, alias.asname or alias.name): (node.module, alias.name)
            for module, _, node in self._nodes
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
        }

    def places(self) -> dict[str, list[str]]:
        """Returns text -> places of every advice. A value in the text is `VALUE`."""
        found: dict[str, list[str]] = {}
        for module, around, node in self._nodes:
            values = []
            if isinstance(node, ast.keyword) and node.arg == "hint":
                values = [node.value]
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Attribute)
                and node.targets[0].attr == "hint"
            ):
                values = [node.value]
            for value in values:
                self._seen.clear()
                for text in self._texts((module, around, value)):
                    if _WORDS.search(text.replace(VALUE, " ")):
                        found.setdefault(text, []).append(f"{module}:{value.lineno}")
        return found

    def _texts(self, place: _Place) -> Iterator[str]:
        module, around, value = place
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        match value:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in parts)
                for part in parts:
                    if isinstance(part, ast.FormattedValue):
                        yield from self._texts((module, around, part.value))
            case ast.BinOp(left=left, right=right):
                yield from self._texts((module, around, left))
                yield from self._texts((module, around, right))
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._texts((module, around, body))
                yield from self._texts((module, around, orelse))
            case ast.BoolOp(values=values):
                for each in values:
                    yield from self._texts((module, around, each))
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))):
                for each in self._values(module, around, inner):
                    constants = self._values(*each) if isinstance(each[2], ast.Name) else [each]
                    for where, within, pair in constants:
                        if isinstance(pair, ast.Tuple):
                            yield from self._texts((where, within, pair.elts[index]))
            case ast.Name() | ast.Attribute():
                for each in self._values(module, around, value):
                    yield from self._texts(each)
            case ast.Call(func=ast.Name(id=name)):
                module, name = self._imports.get((module, name), (module, name))
                yield from self._returned(module, name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                yield from self._returned(module, name)

    def _returned(self, module: str, function: str) -> Iterator[str]:
        for where, around, node in self._nodes:
            if where == module and isinstance(node, ast.Return) and node.value and around[-1].name == function:
                yield from self._texts((module, around, node.value))

    def _values(self, module: str, around: tuple[_Function, ...], value: ast.expr) -> Iterator[_Place]:
        """Yields what a name may be: a local value, an argument of each call, or a constant."""
        name = _name(value)
        if isinstance(value, ast.Attribute):
            yield from self._assigned.get((module, name), [])
            for where, within, node in self._nodes:
                if isinstance(node, ast.keyword) and node.arg == name == "advice":
                    yield where, within, node.value
            return
        local = [each for each in self._assigned.get((module, name), []) if each[1] and each[1][0] in around]
        yield from local
        for function in around:
            names = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
            if name in names:
                yield from self._arguments(module, function, name, names.index(name) - (names[0] == "self"))
                return
        if not local:
            where, name = self._imports.get((module, name), (module, name))
            yield from (each for each in self._assigned.get((where, name), []) if not each[1])

    def _arguments(self, module: str, function: _Function, name: str, position: int) -> Iterator[_Place]:
        owner = function.name
        if owner == "__init__":
            owner = next(
                each.name
                for each in ast.walk(self._modules[module])
                if isinstance(each, ast.ClassDef) and function in each.body
            )
        for where, around, call in self._calls.get(owner, []):
            if where != module and self._imports.get((where, owner)) != (module, owner):
                continue
            yield from ((where, around, each.value) for each in call.keywords if each.arg == name)
            if position < len(call.args):
                yield where, around, call.args[position]


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
