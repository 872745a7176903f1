"""Tests run each benchmark with each of its options and values."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import convert_layouts
import feed
import gpu
import in_place
import lerobot_train
import pytest
import selection
import video
from feeding import contenders
from feeding.contenders import CONTENDERS, INLINE, THREADS
from feeding.environments import requirements
from feeding.scenarios import FAMILIES, SCENARIOS
from mixing import peer
from recording.contenders import RECORDERS, SAMPLERS

from tests.support.benchmarks.commands import BENCHMARKS, COMMANDS, WITHOUT_OPTIONS, parser_of

COMMANDS_OF: dict[str, list[list[str]]] = {}
for _command in COMMANDS.values():
    _script, *_arguments = _command.split()
    COMMANDS_OF.setdefault(_script, []).append(_arguments)
SOURCES = [file.read_text() for file in Path(__file__).parent.rglob("test_*.py")]
#: Scripts of peers/ that feed.py runs for its options, without a contender.
OF_OPTIONS = {
    "gear_convert.py": "--shapes",
    "gear_memory.py": "--leak",
    "gear_profile.py": "--profile",
    "gear_wait.py": "--wait",
}
OF_VIDEO = {contender.script: contender.environment for contender in video.CONTENDERS}
OF_WRITER = {each.contender.script: each.contender.environment for each in (*RECORDERS, *SAMPLERS)}
OF_TRAINING = {"lerobot_training.py": lerobot_train.ENVIRONMENT}
OF_HUB = {contender.script: contender.environment for contender in in_place.CONTENDERS}
OF_MIXTURE = {each.script: each.environment for each in peer.CONTENDERS.values()}


def programs(folder: str) -> set[str]:
    """Returns the Python files of a folder that can be run."""
    files = (BENCHMARKS / folder).glob("*.py")
    return {file.name for file in files if 'if __name__ == "__main__":' in file.read_text()}


def test_every_benchmark_is_run() -> None:
    assert COMMANDS_OF.keys() | WITHOUT_OPTIONS.keys() == programs(".")
    assert WITHOUT_OPTIONS.keys() & COMMANDS_OF.keys() == set()
    for script, name in WITHOUT_OPTIONS.items():
        runner = COMMANDS[name].split()[0]
        assert f"from {script.removesuffix('.py')} import" in (BENCHMARKS / runner).read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_test_runs_the_command(name: str) -> None:
    assert any(f'["{name}"]' in text or f'run("{name}"' in text or f'("{name}", ' in text for text in SOURCES)


@pytest.mark.parametrize("script", COMMANDS_OF)
def test_every_option_is_used(script: str) -> None:
    used = {argument for arguments in COMMANDS_OF[script] for argument in arguments}
    missing = []
    for action in parser_of(script)._actions:
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            missing += [action.dest] if not used & set(action.option_strings) else []
    assert missing == [], f"add a command with these options of {script} to tests/support/benchmarks/commands.py"


def values(script: str, option: str) -> set[str]:
    """Returns the values of an option in all commands; lists are separated by commas."""
    found = set()
    for arguments in COMMANDS_OF[script]:
        for place, argument in enumerate(arguments):
            if argument == option:
                found |= set(arguments[place + 1].split(","))
    return found


def test_every_value_is_used() -> None:
    """Values that options choose among.

    Without the option, a command has all of them.
    """
    assert values("feed.py", "--shapes") == {scenario.name for scenario in SCENARIOS}
    assert any("--all" in arguments and "--peers" not in arguments for arguments in COMMANDS_OF["feed.py"])
    assert any("--kinds" not in arguments and "--sparse" not in arguments for arguments in COMMANDS_OF["selection.py"])
    assert "all" in values("convert.py", "--layout") and "all" not in convert_layouts.LAYOUTS
    assert values("gpu.py", "--only") == gpu.TITLES.keys()
    assert {value.partition("=")[0] for value in values("feed.py", "--source")} <= FAMILIES.keys()
    assert len(selection.KINDS) == len(set(selection.KINDS))


def test_every_script_of_a_peer_is_run() -> None:
    shapes = {scenario.name: scenario for scenario in SCENARIOS}
    reached = {INLINE, THREADS}
    for arguments in COMMANDS_OF["feed.py"]:
        if "--python" in arguments:  # with peers
            names = arguments[arguments.index("--shapes") + 1].split(",")
            reached = reached.union(*(shapes[name].peers for name in names))
    assert reached == {contender.name for contender in CONTENDERS}
    others = (
        OF_OPTIONS.keys() | OF_VIDEO.keys() | OF_WRITER.keys() | OF_MIXTURE.keys() | OF_TRAINING.keys() | OF_HUB.keys()
    )
    assert programs("peers") == {contender.script for contender in CONTENDERS} | others
    source = inspect.getsource(feed) + (BENCHMARKS / "feeding" / "data.py").read_text()
    assert all(f'"{script}"' in source for script in OF_OPTIONS)
    environments = {contender.environment for contender in CONTENDERS} - {None}
    files = {file.stem for file in requirements("").parent.glob("*.txt")}
    used = [*OF_VIDEO.values(), *OF_WRITER.values(), *OF_TRAINING.values(), *OF_MIXTURE.values()]
    assert environments | set(used) - {None} == files
    # Reverb has no wheels for all versions of Python. Its absence is reported.
    assert environments - {value.partition("=")[0] for value in values("feed.py", "--python")} == {"reverb"}
    assert re.search(r"not installed \(run with --install\)", inspect.getsource(contenders))
