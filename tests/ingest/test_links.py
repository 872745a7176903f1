"""Symbolic links in a source: none leads out of its folder unasked, no file is read twice or left out in silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import InvalidArgumentError
from gear_data.ingest.lint import suggest_mapping


@pytest.fixture
def folder(sources: Any, rollouts: list[Any], tmp_path: Path) -> Path:
    """The first half of the rollouts in a folder, and the second half elsewhere."""
    sources.write_episodes(tmp_path / "source" / "a.parquet", rollouts[:20])
    sources.write_episodes(tmp_path / "elsewhere" / "b.parquet", rollouts[20:])
    return tmp_path / "source"


LINKS = {"file": ("b.parquet", "b.parquet"), "folder": ("more", ".")}


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_that_leads_out(kind: str, folder: Path, sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    name, target = LINKS[kind]
    (folder / name).symlink_to(tmp_path / "elsewhere" / target)
    for read in (lambda: gear_data.convert(folder, tmp_path / "d"), lambda: gear_data.lint(folder)):
        with pytest.raises(InvalidArgumentError, match=r"(?s)leads out of the folder.*follow_links=True") as error:
            read()
        assert error.value.file == name
    assert not (tmp_path / "d").exists()
    gear_data.convert(folder, tmp_path / "d", follow_links=True)
    sources.check_dataset(tmp_path / "d", rollouts)
    assert gear_data.lint(folder, follow_links=True).episodes == len(rollouts)


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    assert main(["convert", str(folder), str(tmp_path / "d"), "--json"]) == 2
    assert "--follow-links" in json.loads(capsys.readouterr().out)["message"]
    assert main(["convert", str(folder), str(tmp_path / "d"), "--follow-links", "--json"]) == 0
    capsys.readouterr()
    main(["lint", str(folder), "--follow-links"])
    assert "40 episodes" in capsys.readouterr().out


def test_links_to_folders_that_are_read_anyway(folder: Path, sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "a.parquet").rename(folder / "inner" / "a.parquet")
    (folder / "latest").symlink_to("inner")
    (folder / "inner" / "loop").symlink_to("..")
    gear_data.convert(folder, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts[:20])
    # Two names of one place, which also leads back.
    for name in ("more", "again"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(folder)
    gear_data.convert(folder, tmp_path / "e", follow_links=True)
    assert gear_data.open(tmp_path / "e").manifest.episodes == len(rollouts)


@pytest.mark.parametrize("target", ["a.parquet", "inner/a.parquet"])
def test_a_second_name_of_a_file_is_refused(
    target: str, folder: Path, sources: Any, rollouts: list[Any], tmp_path: Path
) -> None:
    """Else all its episodes would be in the dataset twice."""
    (folder / "inner").mkdir()
    (folder / "a.parquet").rename(folder / target)
    (folder / "latest.parquet").symlink_to(target)
    for follow in (False, True):
        with pytest.raises(InvalidArgumentError, match="would be read twice") as error:
            gear_data.convert(folder, tmp_path / "d", follow_links=follow)
        assert error.value.file == "latest.parquet"
    (folder / "latest.parquet").unlink()
    gear_data.convert(folder, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts[:20])


def test_links_to_files_that_are_not_listed(folder: Path, sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """Git-annex keeps the files in a hidden folder."""
    (folder / ".git" / "annex").mkdir(parents=True)
    (folder / "a.parquet").rename(folder / ".git" / "annex" / "a.parquet")
    (folder / "a.parquet").symlink_to(".git/annex/a.parquet")
    (folder / "README.md").write_text("rollouts")
    (folder / "NOTES.md").symlink_to("README.md")
    gear_data.convert(folder, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts[:20])


def test_the_hubs_cache_needs_no_permission(folder: Path, sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "datasets--me--hops"
    snapshot = repository / "snapshots" / ("0" * 40) / "data"
    for parent in (repository / "blobs", snapshot):
        parent.mkdir(parents=True)
    (folder / "a.parquet").rename(repository / "blobs" / "0a1b")
    (snapshot / "a.parquet").symlink_to(os.path.relpath(repository / "blobs" / "0a1b", snapshot))
    gear_data.convert(snapshot.parent, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts[:20])
    (snapshot / "b.parquet").symlink_to(tmp_path / "elsewhere" / "b.parquet")
    with pytest.raises(InvalidArgumentError, match="leads out"):
        gear_data.convert(snapshot.parent, tmp_path / "e")


def test_a_mapping_is_suggested(tmp_path: Path, sources: Any, rollouts: list[Any]) -> None:
    (tmp_path / "source").mkdir()
    sources.write_d4rl(tmp_path / "elsewhere.hdf5", rollouts)
    (tmp_path / "source" / "a.hdf5").symlink_to(tmp_path / "elsewhere.hdf5")
    with pytest.raises(InvalidArgumentError, match="leads out"):
        suggest_mapping(tmp_path / "source")
    assert "observations" in suggest_mapping(tmp_path / "source", follow_links=True)


def test_a_repair_follows_the_links_of_the_conversion(folder: Path, tmp_path: Path) -> None:
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    gear_data.convert(folder, tmp_path / "d", follow_links=True, shard_bytes=2048)
    shard = sorted((tmp_path / "d" / "shards").iterdir())[-1]
    sound = shard.read_bytes()
    shard.write_bytes(sound[:-2000] + bytes(1000) + sound[-1000:])
    gear_data.repair(tmp_path / "d", folder)
    assert shard.read_bytes() == sound
