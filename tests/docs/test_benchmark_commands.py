"""Commands of benchmarks in the documentation have options that exist.

Pages with measurements name a command.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.benchmarks.commands import BENCHMARKS, module_of, parser_of
from tests.support.docs.examples import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(BENCHMARKS.glob("*.py")),
]
_COMMAND = re.compile(r"python (benchmarks/\w+\.py[^`#\n\"]*)")
_OPTION = re.compile(r"`(--[a-z][a-z-]+)")
#: A rate, or a duration below a second, as benchmarks print them.
_MEASURED = re.compile(r"\d (?:[GM]B/s|us|ns)\b|\d times (?:TorchRL|as fast)|microseconds|windows/s")


def _commands() -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), command.strip())
        for page in PAGES
        for command in _COMMAND.findall(page.read_text())
    ]


def test_commands_are_found() -> None:
    found = _commands()
    assert len(found) > 12
    assert {Path(command.split()[0]).name for _, command in found} >= {
        "cluster.py", "convert.py", "feed.py", "gpu.py", "rdma.py", "scale.py", "selection.py"
    }  # fmt: skip


@pytest.mark.parametrize(("page", "command"), _commands())
def test_a_command_can_be_parsed(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, *arguments = shlex.split(command)
    assert (ROOT / script).is_file()
    if script == "benchmarks/raw_flight.py":
        assert arguments == []  # it has no options
        return
    monkeypatch.chdir(tmp_path)
    # Names that commands use.
    for name in ("hopper.parquet", "episodes.parquet", "OTHER-CHECKOUT/gear_data/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    name = Path(script).name
    parse = getattr(module_of(name), "parse_arguments", None) or parser_of(name).parse_args
    parse(arguments)


def test_a_page_with_measurements_names_a_command() -> None:
    pages = [page for page in PAGES if page.suffix == ".md" and _MEASURED.search(page.read_text())]
    assert {"README.md", "RESULTS.md", "scale.md"} <= {page.name for page in pages}
    without = [page for page in pages if not re.search(r"benchmarks/\w+\.py", page.read_text())]
    assert [page.relative_to(ROOT).as_posix() for page in without] == []


def test_options_beside_results_exist() -> None:
    """Pages name some options without the command."""
    known = {
        option
        for script in ("feed.py", "convert.py", "cluster.py", "scale.py", "gpu.py", "selection.py", "learning.py")
        for action in parser_of(script)._actions
        for option in action.option_strings
    }
    results = (BENCHMARKS / "RESULTS.md").read_text()
    speed = (ROOT / "README.md").read_text().split("## How fast")[1].split("\n## ")[0]
    named = set(_OPTION.findall(results + speed + (ROOT / "docs/explanation/scale.md").read_text()))
    assert {"--wait", "--leak", "--profile", "--flight"} <= named
    assert named - known == set()
