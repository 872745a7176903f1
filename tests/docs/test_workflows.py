"""Workflows of GitHub run commands that exist, for the oldest Python that is supported and a newer one."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from tests.support.docs.examples import ROOT

WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def _jobs() -> list[dict[str, Any]]:
    return [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]


def _commands() -> list[str]:
    return [step["run"] for job in _jobs() for step in job["steps"] if "run" in step]


def test_workflows_run_each_tier_by_a_target_that_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*)(?=[ a-z-]*:(?!=))", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = {target for command in _commands() for target in re.findall(r"^make (?:--\S+ )*(\S+)", command)}
    assert run == {"test", "test-nightly", "site", "dist"}
    assert run <= targets
    assert ".ci/run" in _commands()
    assert "exec make test-all" in (ROOT / ".ci" / "run").read_text()


def test_the_first_tier_runs_on_the_oldest_python_and_a_newer_one() -> None:
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    versions = WORKFLOWS["test.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert versions[0] == oldest.removeprefix(">=")
    assert len(versions) > 1
