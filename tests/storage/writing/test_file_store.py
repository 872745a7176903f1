"""Temporary files of killed processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gear_data
from gear_data.ingest.card import CARD_NAME, write_card
from gear_data.storage.writing.file_store import LocalFileStore, put_single_text, put_text
from tests.support.feed import data as feed_data

#: A process that waits while it writes a file, and goes on after a line.
WRITER = """
import sys
from pathlib import Path
from gear_data.storage.writing.file_store import LocalFileStore
with LocalFileStore(Path(sys.argv[1])).writing(sys.argv[2]) as path:
    path.write_text("whole")
    print(flush=True)
    sys.stdin.readline()
"""


@pytest.mark.processes
def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    name = "a[1].yaml"
    command = [sys.executable, "-c", WRITER, tmp_path]
    writers = [
        subprocess.Popen([*command, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for file in (name, name, "b.yaml")
    ]
    try:
        for writer in writers:
            assert writer.stdout and writer.stdout.readline()
        killed, running, other = writers
        for writer in (killed, other):
            writer.kill()
            writer.wait()
        store = LocalFileStore(tmp_path)
        put_text(store, name, "text")
        assert len(list(tmp_path.glob(".*.tmp"))) == 3
        elsewhere = tmp_path / f".{name}.{killed.pid}-00000000.tmp"  # of another machine
        elsewhere.write_text("half")
        put_single_text(store, name, "text")
        left = {path.name.rpartition("-")[0] for path in tmp_path.glob(".*.tmp")}
        assert left == {f".{name}.{running.pid}", f".b.yaml.{other.pid}", f".{name}.{killed.pid}"}
        assert elsewhere.exists()
        running.communicate(b"\n")
        assert running.returncode == 0
        assert (tmp_path / name).read_text() == "whole"
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


@pytest.mark.processes
def test_cards_and_mixtures_remove_them(tmp_path: Path) -> None:
    feed_data.convert_episodes(feed_data.locomotion([9], seed=0), tmp_path)
    before = {path.name for path in tmp_path.iterdir()} | {"mix.yaml"}
    for file in (CARD_NAME, "mix.yaml"):
        command = [sys.executable, "-c", WRITER, tmp_path, file]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout and writer.stdout.readline()
            writer.kill()
    assert len(list(tmp_path.glob(".*.tmp"))) == 2
    write_card(tmp_path)
    gear_data.Mixture([(gear_data.open(tmp_path), 1)]).to_yaml(tmp_path / "mix.yaml")
    assert {path.name for path in tmp_path.iterdir()} == before
