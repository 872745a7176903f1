"""Metrics of running servers, read by Prometheus's own parser."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gear_data
from gear_data.cli import main
from gear_data.errors import GearError
from tests.support.feed.data import shared_out
from tests.support.running.eventually import eventually


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Yields the report of `gear-data serve --metrics`."""
    command = [sys.executable, "-m", "gear_data.cli", "serve", str(folder), "--listen", "127.0.0.1:0", "--json"]
    command += ["--metrics", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def scraped(report: dict[str, Any]) -> dict[str, float]:
    """Returns sample -> value, after a check of the format and the types."""
    with urllib.request.urlopen(report["metrics"], timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        text = response.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            assert (family.type == "counter") == sample.name.endswith("_total")
            assert sample.labels == {}
            samples[sample.name] = sample.value
    return samples


def test_reading_servers(tmp_path: Path) -> None:
    folder = shared_out(tmp_path / "ds")
    manifest = gear_data.open(folder).manifest
    with serving(folder, "--shards", "0-2") as report:
        before = scraped(report)
        assert before == {
            "gear_data_shards": 3,
            "gear_data_shard_bytes": sum((folder / shard.entry.file).stat().st_size for shard in manifest.shards[:3]),
            "gear_data_generation": 0,
            "gear_data_requests_total": 0,
            "gear_data_errors_total": 0,
            "gear_data_sent_bytes_total": 0,
        }
        with socket.create_connection(report["listen"].rsplit(":", 1), timeout=5):
            pass  # no call
        assert scraped(report) == before


def test_requests_bytes_and_errors(tmp_path: Path) -> None:
    folder = shared_out(tmp_path / "ds")
    local = gear_data.open(folder)
    with serving(folder) as report:
        ds = gear_data.open(f"gear://{report['listen']}")
        opened = scraped(report)
        assert opened["gear_data_requests_total"] >= 1
        assert opened["gear_data_sent_bytes_total"] >= len((folder / "manifest.json").read_bytes()) // 2
        rewards = [episode["rewards"] for episode in ds]
        read = scraped(report)
        assert read["gear_data_requests_total"] > opened["gear_data_requests_total"]
        assert read["gear_data_sent_bytes_total"] - opened["gear_data_sent_bytes_total"] >= sum(
            values.nbytes for values in rewards
        )
        assert all(np.array_equal(a, b["rewards"]) for a, b in zip(rewards, local, strict=True))
        assert read["gear_data_errors_total"] == 0
        with pytest.raises(GearError), gear_data.Writer(f"gear://{report['listen']}") as writer:
            writer.append(actions=0.0)
            writer.end_episode(terminated=True)
        assert scraped(report)["gear_data_errors_total"] >= 1


def test_writable_servers(tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    lengths = [3, 1, 4]
    with serving(folder, "--writable", "--publish-every", "0.2") as report:
        assert set(scraped(report).values()) == {0}
        with gear_data.Writer(f"gear://{report['listen']}") as writer:
            for length in lengths:
                for step in range(length):
                    writer.append(actions=float(step))
                writer.end_episode(terminated=True)
        found = scraped(report)
        assert found["gear_data_episodes_total"] == len(lengths)
        assert found["gear_data_steps_total"] == sum(lengths)
        assert found["gear_data_requests_total"] >= 2
        assert found["gear_data_sent_bytes_total"] > 0
        wait_for_steps(report, sum(lengths))
        found = scraped(report)
        ds = gear_data.open(folder)
        assert found["gear_data_published_steps"] == ds.num_steps == sum(lengths)
        assert found["gear_data_shards"] == len(ds.manifest.shards)
        assert found["gear_data_shard_bytes"] == sum(
            (folder / shard.entry.file).stat().st_size for shard in ds.manifest.shards
        )


def wait_for_steps(report: dict[str, Any], steps: int) -> None:
    """Waits until so many steps are published, by one generation or by several."""
    assert eventually(lambda: scraped(report)["gear_data_published_steps"] >= steps)


def test_a_taken_port_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_out(tmp_path / "ds")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options: Sequence[str] = ["--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{taken.getsockname()[1]}"]
        assert main(["serve", str(folder), *options]) == 1
    assert "choose another --metrics" in capsys.readouterr().err
