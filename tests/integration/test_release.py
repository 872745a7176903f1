"""Files of a release: built again they have the same bytes, and the sdist builds the same wheel."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from scripts import release

#: A second of 2026.
EPOCH = 1_795_000_000


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a copy of the files that git has, or would have."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=release.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (release.ROOT / name).exists():
            target = tmp_path / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(release.ROOT / name, target, follow_symlinks=False)
    return tmp_path / "tree"


def test_two_builds_have_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    found = []
    for number in range(2):
        copy = shutil.copytree(tree, tmp_path / f"tree-{number}", symlinks=True, copy_function=shutil.copy)
        found.append(release.build(copy, tmp_path / f"out-{number}", EPOCH))
    assert [file.name.partition("-")[0] for file in found[0]] == ["gear_data", "gear_data"]
    assert [file.read_bytes() for file in found[0]] == [file.read_bytes() for file in found[1]]
    for file in found[0]:
        assert release.content_problems(file) == []
    [sdist] = (file for file in found[0] if file.name.endswith(".tar.gz"))
    with tarfile.open(sdist) as tar:
        members = tar.getmembers()
    assert {member.mtime for member in members} == {EPOCH}
    assert not any("/tests/" in member.name for member in members)
    assert any(member.name.endswith("/docs/how-to/install.md") for member in members)


def test_what_a_file_lacks_or_has_too_much_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with tarfile.open(tmp_path / "gear_data-1.tar.gz", "w:gz") as tar:
        for name in (*release._WANTED[1:], "tests/test_a.py", "gear_data/__pycache__/a.pyc"):
            tar.add(tmp_path / "file", f"gear_data-1/{name}")
    assert release.content_problems(tmp_path / "gear_data-1.tar.gz") == [
        "gear_data-1.tar.gz lacks CHANGELOG.md",
        "gear_data-1.tar.gz has tests/test_a.py",
        "gear_data-1.tar.gz has gear_data/__pycache__/a.pyc",
    ]


def test_the_changelog_gets_a_section() -> None:
    day = datetime.date(2026, 12, 1)
    first = release.with_section(
        "# Changelog\n\n## [Unreleased]\n\n" + release._FIRST + "### Added\n\n- a\n", "0.1.0", day
    )
    assert first == "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n\n### Added\n\n- a\n"
    second = release.with_section(first.replace("ed]\n\n##", "ed]\n\n### Fixed\n\n- b\n\n##", 1), "0.1.1", day)
    assert "## [Unreleased]\n\n## [0.1.1] - 2026-12-01\n\n### Fixed\n\n- b\n\n## [0.1.0] - 2026-12-01" in second
    text = (release.ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n" in text
