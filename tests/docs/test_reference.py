"""Names in the documentation exist, and the reference has every public name."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
from collections.abc import Iterator

import pytest

import gear_data
from gear_data.exports.registry import EXPORTERS
from gear_data.ingest.sources.registry import known_formats
from gear_data.loaders.presets.registry import PRESETS
from gear_data.selection.samplers import SAMPLERS
from tests.support.docs.examples import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
REFERENCE = {name: text for name, text in TEXTS.items() if name.startswith("docs/reference/")}

_MARKER = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_CODE_PATH = re.compile(r"`((?:gear_data|kernels|loaders|scripts|tests|benchmarks|docs)/[\w./-]*)`")
#: Paths in other repositories.
_ELSEWHERE = {"scripts/train_jat.py"}
_DOTTED = re.compile(r"`(gear_data(?:\.\w+)+)`")


def _documented() -> set[str]:
    return {name for text in REFERENCE.values() for name in _MARKER.findall(text)}


def _public_members(value: type) -> Iterator[tuple[str, object]]:
    """Methods and properties of a class that are public, and its own or of a base in gear_data."""
    ours = [kind for kind in value.__mro__ if kind.__module__.startswith("gear_data")]
    for name, member in (item for kind in ours for item in vars(kind).items()):
        is_code = inspect.isroutine(member) or isinstance(member, property | staticmethod | classmethod)
        if not name.startswith("_") and (is_code or hasattr(member, "func")):
            yield name, member


@pytest.mark.parametrize("name", sorted(set(gear_data.__all__) - {"errors"}))
def test_a_public_name_is_documented(name: str) -> None:
    value = getattr(gear_data, name)
    if name != "GearError":
        assert f"gear_data.{name}" in _documented(), f"add '::: gear_data.{name}' to a page below docs/reference/api"
    assert value.__doc__, f"gear_data.{name} has no docstring"
    if inspect.isclass(value):
        missing = [member for member, code in _public_members(value) if not getattr(code, "__doc__", None)]
        assert not missing, f"gear_data.{name}: no docstring for {', '.join(missing)}"


def test_integrations_are_documented() -> None:
    found = {
        f"gear_data.integrations.{path.stem}.{node.name}"
        for path in (ROOT / "gear_data" / "integrations").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }
    assert len(found) > 3
    assert found <= _documented(), "add them to docs/reference/api/integrations.md"


def test_every_error_is_documented() -> None:
    assert "gear_data.errors" in _documented()
    kinds = [kind for kind in vars(gear_data.errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert len(kinds) > 20
    assert [kind for kind in kinds if not kind.__doc__] == []


def test_pages_name_files_and_modules_that_exist() -> None:
    missing = [
        f"{page}: {path}"
        for page, text in TEXTS.items()
        for path in _CODE_PATH.findall(text)
        if path not in _ELSEWHERE and not (ROOT / path).exists()
    ]
    missing += [
        f"{page}: {name}" for page, text in TEXTS.items() for name in _DOTTED.findall(text) if not _exists(name)
    ]
    assert missing == []


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        if end > 1 and importlib.util.find_spec(".".join(parts[: end - 1])) is None:
            continue
        try:
            value: object = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_code_names_pages_that_exist() -> None:
    folders = ("gear_data", "kernels", "loaders", "scripts", "benchmarks", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".cu", ".md")]
    named = {(file, page) for file in files for page in re.findall(r"(?<!hub-)docs/[\w/-]+\.md", file.read_text())}
    assert {page for _, page in named}
    assert [f"{file}: {page}" for file, page in named if not (ROOT / page).exists()] == []


def test_tables_list_every_preset_format_and_sampler() -> None:
    batches, formats = TEXTS["docs/reference/batches.md"], TEXTS["docs/reference/formats.md"]
    fields = {field.name for field in dataclasses.fields(gear_data.BatchFormat)}
    assert set(re.findall(r"^ {4}(\w+): ", inspect.getdoc(gear_data.BatchFormat) or "", re.MULTILINE)) >= fields
    assert {name for name in PRESETS if f"| `{name}` |" not in batches} == set()
    assert {name for name in known_formats() if f"`{name}`" not in formats} == set()
    assert {name for name in EXPORTERS if f"`{name}`" not in TEXTS["docs/reference/export-formats.md"]} == set()
    samplers = TEXTS["docs/how-to/weight-by-return.md"].lower()
    assert {name for name in SAMPLERS if f"`{name}" not in samplers} == set()


def test_tables_list_every_finding_and_variable() -> None:
    # Codes stand in calls such as `findings.add("no-end-flag", ...)`; a few are chosen from names or tables.
    code = "\n".join(file.read_text() for file in (ROOT / "gear_data" / "ingest").rglob("*.py"))
    listed = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", TEXTS["docs/reference/findings.md"].split("## Observation")[0]))
    assert {name for name in listed if f'"{name}"' not in code} - {"on-bad-episode"} == set()
    called = set(re.findall(r"\.(?:add|note|record|found)\(\s*\"([a-z]+(?:-[a-z]+)+)\"", code))
    assert called - listed == set()
    sources = [file for folder in ("gear_data", "kernels", "loaders") for file in (ROOT / folder).rglob("*.py")]
    used = {name for file in sources for name in re.findall(r"GEAR_DATA_[A-Z_]+[A-Z]", file.read_text())}
    variables = TEXTS["docs/reference/environment.md"]
    assert {name for name in used if f"`{name}`" not in variables} <= {"GEAR_DATA_RUN"}


def test_the_output_of_a_command_is_shown_or_left_out() -> None:
    blocks = [block for text in TEXTS.values() for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]
    only_dots = re.compile(r"^\$ [^\n]*\n\.\.\.\n(?=\$ |\Z)", re.MULTILINE)
    assert len(blocks) > 100
    assert [block for block in blocks if only_dots.search(block)] == []


def test_a_skipped_example_says_why() -> None:
    skips = [(page, line) for page, text in TEXTS.items() for line in text.splitlines() if "<!-- skip" in line]
    assert [each for each in skips if not re.fullmatch(r'<!-- skip: next "[^"]{10,}" -->', each[1])] == []
