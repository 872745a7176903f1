"""Publications to a bucket remove no object that a generation lists, and no sealed journal that a dataset lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs

import gear_data
from gear_data.cli import main
from gear_data.growing import next_generation
from gear_data.growing.object_store import retirement
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.generations import BucketGenerations
from gear_data.growing.object_store.mirror import Mirror
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.video.index_tables import FILES_TABLE
from tests.support.s3.recordings import add_episodes, check_dataset, numbers_in, objects
from tests.support.s3.server import S3Server


def bucket_of(writer: gear_data.Writer) -> Bucket:
    return writer._sink._publisher._bucket  # type: ignore[attr-defined,no-any-return]


def puts_manifest(method: str, path: str) -> bool:
    return method == "PUT" and path.endswith(f"live/{MANIFEST_NAME}")


def film(writer: gear_data.Writer, numbers: Iterable[int]) -> None:
    """Records an episode with a camera and publishes it, for each number."""
    for number in numbers:
        for t in range(3):
            frame = np.full((32, 32, 3), 40 * t, np.uint8)
            writer.append(observations={"images": {"front": frame}}, actions=10 * number + t)
        writer.end_episode(terminated=True)
        writer.seal()


def filming(url: str) -> gear_data.Writer:
    return gear_data.Writer(url, cameras={"observations.images.front": gear_data.Camera(fps=30)})


def check_videos(url: str, episodes: int) -> None:
    """Checks that the dataset and all its generations have their videos."""
    ds = gear_data.open(url)
    assert len(ds) == episodes
    assert gear_data.verify(url, deep=True, progress=False).ok
    for position in range(episodes):
        assert ds[position]["observations.images.front"][:].shape == (3, 32, 32, 3)


def test_another_writer_publishes_before_the_attempt_after_a_lost_answer(
    url: str, server: S3Server, tmp_path: Path
) -> None:
    """The put succeeded: the other Writer's generation has shards of this one."""
    first, second = gear_data.Writer(url), gear_data.Writer(url)
    add_episodes(first, [0])
    first.seal()
    add_episodes(first, [1])
    add_episodes(second, [2])
    faults = [(500, True)]
    puts: list[str] = []

    def interfere(method: str, path: str) -> None:
        if puts_manifest(method, path):
            puts.append(path)
            if len(puts) == 2:
                second.seal()

    server.before = interfere
    server.fault = lambda method, path: faults.pop() if faults and puts_manifest(method, path) else None
    published = first.seal()
    server.reset()
    assert published is not None
    assert (published.generation, published.episodes) == (2, 1)
    first.close()
    second.close()
    check_dataset(url, [0, 1, 2], tmp_path / "plain")
    ds = gear_data.open(url, cache_dir=tmp_path / "cache of another machine")
    assert ds.generation == 3
    for generation, numbers in enumerate([[0], [0, 1], [0, 1, 2]], 1):
        assert numbers_in(ds.at_generation(generation)) == numbers


def test_a_put_that_succeeds_after_it_was_given_up(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server still works at the first attempt when a later one fails."""
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    writer.seal()
    add_episodes(writer, [1])
    conditional = bucket_of(writer).conditional
    put = conditional.put
    given_up: list[tuple[str, bytes, str | None]] = []

    def late(file: str, data: bytes, etag: str | None) -> bool:
        if file != MANIFEST_NAME:
            return put(file, data, etag)
        given_up.append((file, data, etag))
        return len(given_up) > 1 and [put(*each) for each in given_up][-1]

    with monkeypatch.context() as patch:
        patch.setattr(conditional, "put", late)
        writer.seal()
    assert len(given_up) == 2
    add_episodes(writer, [2])
    writer.close()
    check_dataset(url, [0, 1, 2], tmp_path / "plain")
    assert numbers_in(gear_data.open(url).at_generation(2)) == [0, 1]
    left = {file for file in objects(url) if file.startswith("tables/")}
    listed = [gear_data.open(url).at_generation(generation).manifest.tables for generation in (1, 2, 3)]
    assert left == {entry.file for tables in listed for entry in tables.values()}


def in_pages(files: Callable[[str], list[str]], calls: Iterable[tuple[str, Callable[[], None]]]) -> Any:
    """Returns a function that lists files in two pages, and calls a function between them.

    Args:
        files: lists files.
        calls: for each listing, the name with which its second page begins, and the function.
    """
    left = list(calls)

    def listed(folder: str) -> list[str]:
        begin, between = left.pop(0) if left else ("", lambda: None)
        first = [file for file in files(folder) if file < begin]
        between()
        return first + [file for file in files(folder) if file >= begin]

    return listed


def test_a_listing_in_pages_that_lacks_a_journal(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Writer uploads two journals while another one lists: the second page has the second one."""
    writer, other = gear_data.Writer(url), gear_data.Writer(url)
    add_episodes(writer, [0])
    writer.seal()
    growth = gear_data.open(url).manifest.growth
    assert growth is not None
    [series] = growth.sealed
    add_episodes(other, [10])

    def upload(*numbers: int) -> None:
        for number in numbers:
            add_episodes(writer, [number])
            writer.flush()

    # Also the second listing comes in pages: nothing above the first one is taken from it.
    pages = [(f"journals/{series}-{2 * k:06d}", partial(upload, 2 * k - 1, 2 * k)) for k in (1, 2)]
    store = bucket_of(other).objects
    with monkeypatch.context() as patch:
        patch.setattr(store, "files", in_pages(store.files, pages))
        published = other.seal()
    assert published is not None
    assert published.episodes == 3
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1, 2, 10]
    other.close()
    writer.close()
    check_dataset(url, [0, 1, 2, 3, 4, 10], tmp_path / "plain")


def test_numbers_without_gaps_are_listed_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with gear_data.Writer(url) as writer:
        store = bucket_of(writer).objects
        listed: list[str] = []
        files = store.files

        def counted(folder: str) -> list[str]:
            listed.append(folder)
            return files(folder)

        monkeypatch.setattr(store, "files", counted)
        for number in range(3):
            add_episodes(writer, [number])
            writer.flush()
            add_episodes(writer, [10 + number])
            writer.seal()
        assert listed == ["journals"] * 3


def test_a_journal_that_is_set_aside_with_a_publication(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A later journal of its Writer is published: the number of the first one is below that of a published one."""
    writer, other = gear_data.Writer(url), gear_data.Writer(url)
    add_episodes(writer, [0])
    writer.flush()
    store = s3fs.S3FileSystem()
    [table] = [file for file in objects(url) if file.startswith("journals/") and file.endswith("episodes.arrow")]
    path = f"{url.removeprefix('s3://')}/{table}"
    before, data = objects(url), store.cat(path)
    store.pipe(path, b"not a table")
    add_episodes(writer, [1])
    writer.flush()
    other.close()  # this one still has an intact copy of the table
    writer.close()
    assert numbers_in(gear_data.open(url)) == [1]
    assert before <= objects(url)
    store.pipe(path, data)
    name = table.split("/")[1]
    assert main(["journal", "rescue", url, name, str(tmp_path / "rescued")]) == 0
    assert numbers_in(gear_data.open(tmp_path / "rescued")) == [0]


def test_a_table_of_videos_that_cannot_be_read(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The local copy is damaged: nobody knows which videos of the published journal the generation has."""
    clean = BucketGenerations.clean

    def damaged(store: BucketGenerations, newest: Manifest) -> None:
        (store.files.folder / newest.tables[FILES_TABLE].file).write_bytes(b"not a table")
        clean(store, newest)

    with filming(url) as writer:
        film(writer, [0])
        monkeypatch.setattr(BucketGenerations, "clean", damaged)
        film(writer, [1])
        monkeypatch.setattr(BucketGenerations, "clean", clean)
    assert "files that are not needed any more stay for now" in caplog.text
    with filming(url) as writer:
        film(writer, [2])
    check_videos(url, 3)
    assert not [file for file in objects(url) if file.startswith("journals/")]


def test_two_writers_that_remove_the_same_generations(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is stopped after it has read the tables of the first; the other one removes this and the next one."""
    with filming(url) as writer:
        film(writer, range(3))
        time.sleep(1.1)  # the times of objects are whole seconds
        film(writer, [3])
    monkeypatch.setenv("GEAR_DATA_KEEP_SECONDS", "0.1")
    bucket = Bucket(url)
    newest = bucket.newest()
    assert newest is not None
    stopped = Mirror(tmp_path / "stopped", bucket.objects)
    fetch = stopped.fetch

    def fetch_and_stop(manifest: Manifest) -> None:
        fetch(manifest)
        if manifest.generation == 1:
            retirement.remove_replaced(bucket, Mirror(tmp_path / "other", bucket.objects), newest)

    monkeypatch.setattr(stopped, "fetch", fetch_and_stop)
    with pytest.raises(FileNotFoundError):
        retirement.remove_replaced(bucket, stopped, newest)
    assert {file for file in objects(url) if file.startswith("generations/")} == {"generations/000003.json"}
    check_videos(url, 4)
    retirement.remove_replaced(bucket, Mirror(tmp_path / "later", bucket.objects), newest)


def test_shards_of_a_series_that_was_forgotten(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_generation, "REMEMBERED", 2)
    monkeypatch.setattr(retirement, "_UNFINISHED", timedelta(seconds=-1))
    for first in range(0, 48, 12):
        with gear_data.Writer(url, shard_bytes=1024) as writer:
            add_episodes(writer, range(first, first + 12))  # a full shard is not joined with a later one
    growth = gear_data.open(url).manifest.growth
    assert growth is not None
    assert growth.forgotten
    gear_data.Writer(url).close()
    check_dataset(url, list(range(48)), tmp_path / "plain")


def test_a_journal_that_is_published_while_unfinished_uploads_are_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a day."""
    with gear_data.Writer(url, shard_bytes=1024) as writer:
        add_episodes(writer, range(12))
        writer.seal()
        add_episodes(writer, range(12, 24))
        writer.flush()
        bucket = Bucket(url)
        times, day = bucket.objects.times, timedelta(days=1)

        def published_meanwhile() -> dict[str, Any]:
            before = times()
            writer.seal()
            return {file: time - 2 * day * (file in before) for file, time in times().items()}

        monkeypatch.setattr(bucket.objects, "times", published_meanwhile)
        retirement.remove_unfinished(bucket)
    check_dataset(url, list(range(24)), tmp_path / "plain")
