"""Tests the dataset card with the hub's library, and its folder with `datasets`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from statistics import fmean, median
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from huggingface_hub import DatasetCard

import gear_data
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.storage.episode_tables import read_episodes
from gear_data.storage.manifest import Manifest


def write_card(folder: Path) -> str:
    manifest = Manifest.load(folder)
    text = dataset_card(manifest, read_episodes(folder / "episodes.arrow", manifest))
    (folder / CARD_NAME).write_text(text, encoding="utf-8")
    return text


def front_matter(text: str) -> dict[str, Any]:
    head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert head is not None
    data: dict[str, Any] = yaml.safe_load(head[1])
    return data


def cells(text: str, first: str) -> list[str]:
    """Returns the cells of the table row that begins with `first`."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    assert len(rows) == 1, rows
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", rows[0])[1:-1]]


@pytest.fixture
def folder(tmp_path: Path, sources: Any) -> Path:
    rollouts = sources.make_rollouts(40, seed=3)
    source = sources.write_episodes(tmp_path / "hops.parquet", rollouts)
    gear_data.convert(source, tmp_path / "d", shard_bytes=2048)
    return tmp_path / "d"


def test_the_hub_reads_the_card_and_datasets_the_folder(folder: Path) -> None:
    write_card(folder)
    data = DatasetCard.load(folder / CARD_NAME).data.to_dict()
    assert data["task_categories"] == ["reinforcement-learning"]
    assert data["size_categories"] == ["n<1K"]
    assert "license" not in data
    ds = gear_data.open(folder)
    assert len(ds.manifest.shards) > 2
    loaded = datasets.load_dataset(str(folder), split="train", cache_dir=str(folder.parent / "cache"))
    assert set(loaded.column_names) == set(ds.schema.names)
    assert len(loaded) == ds.num_steps
    expected = np.concatenate([ds.episode(i)["observations"] for i in range(ds.num_episodes)])
    np.testing.assert_array_equal(np.array(loaded["observations"][:], np.float32), expected)
    assert gear_data.verify(folder).ok


def test_an_edited_card_changes_nothing(folder: Path) -> None:
    before = gear_data.open(folder).manifest.fingerprint
    write_card(folder)
    (folder / CARD_NAME).write_text("mine")
    assert gear_data.verify(folder).ok
    assert gear_data.open(folder).manifest.fingerprint == before


def test_figures(tmp_path: Path, folder: Path, sources: Any) -> None:
    rollouts = sources.make_rollouts(40, seed=3)
    text = write_card(folder)
    lengths = [len(rollout) for rollout in rollouts]
    assert cells(text, "episodes")[1] == "40"
    assert cells(text, "steps")[1] == str(sum(lengths))
    assert cells(text, "steps an episode")[1] == (
        f"min {min(lengths)}, median {median(lengths):g}, mean {fmean(lengths):.6g}, max {max(lengths)}"
    )
    returns = [sum(rollout.columns["rewards"].tolist()) for rollout in rollouts]
    assert cells(text, "return of an episode")[1] == (
        f"min {min(returns):.6g}, median {median(returns):.6g}, mean {fmean(returns):.6g}, max {max(returns):.6g}"
    )
    actions = np.concatenate([rollout.columns["actions"] for rollout in rollouts]).astype(np.float64)
    row = cells(text, "`actions`")
    assert row[1:4] == ["float32", "2", "action"]
    assert row[4] == f"{actions[:, 0].mean():.6g}, {actions[:, 1].mean():.6g}"
    assert row[7] == f"{actions[:, 0].max():.6g}, {actions[:, 1].max():.6g}"
    assert cells(text, "`returns_to_go`")[3] == "return to go, derived"
    assert "# hops.parquet\n" in text
    assert str(tmp_path) not in text


def test_no_folder_of_this_machine_is_shown(tmp_path: Path, folder: Path) -> None:
    shutil.copy(tmp_path / "hops.parquet", tmp_path / "more.parquet")
    gear_data.convert([tmp_path / "hops.parquet", tmp_path / "more.parquet"], tmp_path / "two", progress=False)
    gear_data.open(tmp_path / "two")[:50].save(tmp_path / "view", progress=False)
    for name in ("d", "two", "view"):
        text = write_card(tmp_path / name)
        assert str(tmp_path) in (tmp_path / name / "manifest.json").read_text()
        assert str(tmp_path) not in text
    assert cells(write_card(tmp_path / "two"), "source")[1] == "`hops.parquet, more.parquet`"


def test_findings_are_listed(tmp_path: Path, sources: Any) -> None:
    columns = [{k: v for k, v in r.columns.items() if k != "truncated"} for r in sources.make_rollouts(4, short=False)]
    source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
    report = gear_data.convert(source, tmp_path / "d")
    lines = [line for line in write_card(tmp_path / "d").splitlines() if line.startswith("- ")]
    assert len(lines) == len(report.warnings) > 0
    assert all(line[2:].startswith(w.split(":")[0]) for line, w in zip(lines, report.warnings, strict=True))


def test_column_names_are_escaped(tmp_path: Path, sources: Any) -> None:
    name = "a|b` <script>*x*\n| c"
    rollouts = [r.with_columns(**{name: r.columns["rewards"]}) for r in sources.make_rollouts(4)]
    source = sources.write_episodes(tmp_path / "[s](http:x).parquet", rollouts)
    gear_data.convert(source, tmp_path / "d")
    text = write_card(tmp_path / "d")
    assert "<script>" not in text
    assert "`[s](http:x).parquet`" in text
    head = text.index("| column |")
    table = text[head : text.index("\n\n", head)].splitlines()
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in table}
    assert len(table) == 2 + len(gear_data.open(tmp_path / "d").schema)
    assert widths == {10}


def test_names_are_no_links(tmp_path: Path, sources: Any) -> None:
    """GitHub Flavored Markdown, 6.9: autolinks begin with `www.`, with `http://` and the like, or have an `@`."""
    names = ("see https:a|", "Www.b.example`", "c@d.example|", "MAILTO:e|", "|xmpp:f")
    rollouts = [r.with_columns(**dict.fromkeys(names, r.columns["rewards"])) for r in sources.make_rollouts(4)]
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts)
    gear_data.convert(source, tmp_path / "g@h.example")
    text = write_card(tmp_path / "g@h.example")
    # Code, and the links of the card itself.
    shown = re.sub(r"^```.*?^```|`[^`\n]*`|(?<!\\)\]\([^)]*\)", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"(?:https?|ftp):|www\.|(?:mailto|xmpp):|[\w.+-]@", shown, re.IGNORECASE)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("My: own\n--- terms", {"license": "other", "license_name": "My-own-----terms"}),
    ],
)
def test_licence(tmp_path: Path, sources: Any, given: str, expected: dict[str, str]) -> None:
    folder = sources.write_lerobot(tmp_path / "s", sources.make_rollouts(4), info={"license": given})
    gear_data.convert(folder, tmp_path / "d")
    data = front_matter(write_card(tmp_path / "d"))
    assert {name: data[name] for name in data if name.startswith("license")} == expected


def test_no_rewards_and_text(tmp_path: Path, sources: Any) -> None:
    columns = [
        {"observations": r.columns["observations"], "actions": r.columns["actions"], "text": np.array(["x"] * len(r))}
        for r in sources.make_rollouts(4)
    ]
    tables = sources.episode_table([{k: v for k, v in c.items() if k != "text"} for c in columns])
    tables = tables.append_column("observations.text", [[c["text"].tolist() for c in columns]])
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", tables), tmp_path / "d")
    text = write_card(tmp_path / "d")
    assert "return of an episode" not in text
    assert cells(text, "`observations.text`")[1:] == ["string", "any length", "observation", *[""] * 4]
