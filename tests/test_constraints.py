"""constraints.txt must suit the oldest Python that pyproject.toml allows, and hashes.txt must have its files."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def test_every_pin_allows_the_oldest_python() -> None:
    """A pin that excludes it makes pip try other versions of its parents for an hour, and then fail."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    environment = {"python_full_version": oldest, "python_version": oldest.rpartition(".")[0]}
    checked = 0
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is not None and not pin.marker.evaluate(environment):
            continue
        try:
            found = importlib.metadata.distribution(pin.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # pinned for other extras than the tests'
        if found.version.partition("+")[0] in pin.specifier:
            wanted = found.metadata.get("Requires-Python")
            assert oldest in SpecifierSet(wanted or ""), f"{pin.name} {found.version} wants Python {wanted}"
            checked += 1
    assert checked > 100


def test_hashes_are_of_the_pinned_versions() -> None:
    """A package without a hash, or of another version, could not be installed by `make LOCKED=1`."""
    hashed: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=[a-z])", (ROOT / "hashes.txt").read_text())[1:]:
        text, *hashes = block.strip().split(" \\\n    --hash=")
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", value) for value in hashes) and hashes, text
        requirement = Requirement(text)
        hashed.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            assert str(pin.specifier) in hashed.get(canonicalize_name(pin.name), ()), f"run make lock: {line}"
