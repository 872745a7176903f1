"""Writers of a dataset in a bucket, against an S3 server."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import s3fs

import gear_data
from gear_data.cli import main
from gear_data.common import retry
from gear_data.errors import (
    DatasetNotFoundError,
    DatasetReplacedError,
    DestinationExistsError,
    GenerationGoneError,
    InvalidArgumentError,
    RemoteError,
)
from gear_data.growing import next_generation, publish
from gear_data.growing.object_store import generations, retirement
from gear_data.growing.object_store.bucket import Bucket
from gear_data.growing.object_store.mirror import Mirror
from gear_data.recording import journal_folder
from gear_data.recording.object_store import publisher
from gear_data.recording.object_store.local_journals import journal_base
from gear_data.recording.record import record_episodes
from gear_data.storage.journal.quarantine import entries
from gear_data.storage.journal.reading import Journal, read_journal
from gear_data.storage.journal.writing import new_series
from tests.support.s3.recordings import add_episodes, check_dataset, numbers_in, objects
from tests.support.s3.server import CONDITIONS, S3Server


def test_episodes_become_generations(url: str, tmp_path: Path) -> None:
    writer = gear_data.Writer(url)
    add_episodes(writer, range(3))
    first = writer.seal()
    assert first is not None
    assert (first.generation, first.episodes, first.total_episodes) == (1, 3, 3)
    assert writer.seal() is None
    ds = gear_data.open(url)
    add_episodes(writer, range(3, 5))
    second = writer.seal()
    assert second is not None
    assert (second.generation, second.episodes, second.total_episodes) == (2, 2, 5)
    assert (ds.generation, len(ds)) == (1, 3)
    newer = ds.refresh()
    assert (newer.generation, numbers_in(newer)) == (2, [0, 1, 2, 3, 4])
    assert newer.refresh() is newer
    assert numbers_in(newer.at_generation(1)) == [0, 1, 2]
    assert writer.close() is None
    check_dataset(url, list(range(5)), tmp_path / "plain")
    assert not {file for file in objects(url) if file.startswith("journals/")}


def test_requests_of_a_small_generation(url: str, server: S3Server) -> None:
    """Most of the time of a small one is the server's answers."""
    with gear_data.Writer(url) as writer:
        for number in range(3):
            add_episodes(writer, [number])
            before = len(server.requests)
            writer.seal()
        assert len(server.requests[before:]) <= 25


def test_an_unchanged_manifest_is_not_fetched_again(url: str, server: S3Server) -> None:
    with gear_data.Writer(url) as writer:
        add_episodes(writer, range(2))
    ds = gear_data.open(url)
    before = len(server.requests)
    assert ds.refresh() is ds
    assert [method for method, path in server.requests[before:] if path.endswith("manifest.json")] == ["HEAD"]


def test_a_new_generation_fetches_only_new_shards(url: str, server: S3Server) -> None:
    writer = gear_data.Writer(url, shard_bytes=1024)
    add_episodes(writer, range(12))  # a full shard is not joined with a later one
    writer.seal()
    ds = gear_data.open(url)
    numbers_in(ds)
    add_episodes(writer, [12])
    writer.close()
    before = len(server.requests)
    newer = ds.refresh()
    assert numbers_in(newer) == list(range(13))
    fetched = {path for method, path in server.requests[before:] if method == "GET" and "/shards/" in path}
    assert len(fetched) < len(newer.manifest.shards)
    assert {file.rpartition("/")[2] for file in fetched} <= {
        shard.entry.file.rpartition("/")[2] for shard in newer.manifest.shards if shard not in ds.manifest.shards
    }


def test_a_converted_dataset_grows(url: str) -> None:
    steps = {"actions": [0, 1, 2], "observations": [[0.0, 1.0]] * 4, "rewards": [1.0] * 3}
    gear_data.convert([{**{name: np.array(values) for name, values in steps.items()}, "terminated": True}], url)
    base = gear_data.open(url)
    with gear_data.Writer(url) as writer:
        for t in range(3):
            writer.append(actions=t, observations=[0.0, 1.0], rewards=1.0)
        writer.end_episode(terminated=True)
    ds = base.refresh()
    assert (ds.generation, len(ds), len(base)) == (1, 2, 1)
    assert len(ds.at_generation(0)) == 1
    assert gear_data.verify(url, progress=False).ok


def test_writers_that_publish_at_once(url: str, tmp_path: Path) -> None:
    """Threads publish after every second episode: each episode is there once."""
    failures = []

    def record(first: int) -> None:
        try:
            with gear_data.Writer(url, durability="os") as writer:
                for number in range(first, first + 6):
                    add_episodes(writer, [number])
                    if number % 2:
                        writer.seal()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=record, args=(100 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    seen: list[tuple[int, int]] = []
    while not failures and "manifest.json" not in objects(url):
        time.sleep(0.05)
    assert not failures
    ds = gear_data.open(url, follow=True)
    while any(thread.is_alive() for thread in threads):
        ds = ds.refresh()
        seen.append((ds.generation, len(numbers_in(ds))))
    for thread in threads:
        thread.join()
    assert not failures
    assert seen == sorted(seen)
    check_dataset(url, [100 * k + i for k in range(3) for i in range(6)], tmp_path / "plain")
    newest = gear_data.open(url)
    generations = {int(file[12:18]) for file in objects(url) if file.startswith("generations/")}
    assert generations == set(range(1, newest.generation))
    listed = {file for number in generations for file in _files(newest.at_generation(number))} | _files(newest)
    left = {file for file in objects(url) if file.startswith(("shards/", "tables/"))} - listed
    assert not left, "a lost race left files"


def _files(dataset: gear_data.Dataset) -> set[str]:
    return {entry.file for entry in dataset.manifest.files}


def test_a_lost_race_is_merged_again(url: str, server: S3Server) -> None:
    """Another Writer publishes between the reading of the manifest and its put."""
    first, second = gear_data.Writer(url), gear_data.Writer(url)
    add_episodes(first, [0])
    add_episodes(second, [1])
    puts = []

    def interfere(method: str, path: str) -> None:
        if method == "PUT" and path.endswith("live/manifest.json"):
            puts.append(path)
            if len(puts) == 1:
                second.seal()

    server.before = interfere
    published = first.seal()
    server.before = lambda method, path: None
    assert published is not None
    assert (published.generation, published.episodes) == (1, 1)  # the other Writer took both journals
    assert len(puts) >= 2
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1]
    first.close()
    second.close()


def test_a_first_generation_while_another_writer_opens(url: str, server: S3Server) -> None:
    """The first generation appears before each request of the opening."""
    request = 0
    while opened_beside(f"{url}/{request}", server, request):
        request += 1
    assert request > 2


def opened_beside(url: str, server: S3Server, request: int) -> bool:
    """Opens a Writer while another one publishes before a request of the opening. Returns whether there is this one."""
    seen: list[str] = []
    with gear_data.Writer(url) as first:
        add_episodes(first, [0])

        def interfere(method: str, path: str) -> None:
            seen.append(path)
            if len(seen) == request + 1:
                first.seal()

        server.before = interfere
        with gear_data.Writer(url) as second:
            server.reset()
            add_episodes(second, [1])
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1]
    return len(seen) > request


def puts_manifest(method: str, path: str) -> bool:
    return method == "PUT" and path.endswith("live/manifest.json")


def test_a_journal_that_is_published_while_it_is_read(url: str, server: S3Server) -> None:
    """Before each of the reads, once: its files are gone then."""
    read = published = 0
    while published == read:
        place = f"{url}-{read}"
        with gear_data.Writer(place) as first, gear_data.Writer(place) as second:
            add_episodes(first, [0])
            first.flush()
            add_episodes(second, [1])
            count = 0

            def publish(method: str, path: str, first: gear_data.Writer = first, at: int = read) -> None:
                nonlocal count, published
                if method == "GET" and path.startswith("/bucket/"):
                    count += 1
                    if count == at + 1:
                        first.seal()
                        published += 1

            server.before = publish
            second.seal()
            server.reset()
        read += 1
        assert sorted(numbers_in(gear_data.open(place))) == [0, 1]
    assert published > 3


def test_a_put_whose_answer_is_lost(url: str, server: S3Server) -> None:
    """The server published the generation, and its answer was an error: the retry finds the manifest."""
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    writer.seal()
    add_episodes(writer, [1])
    faults = [(500, True)]
    server.fault = lambda method, path: faults.pop() if faults and puts_manifest(method, path) else None
    published = writer.seal()
    assert not faults
    assert published is not None
    assert (published.generation, published.total_episodes) == (2, 2)
    assert writer.close() is None
    assert numbers_in(gear_data.open(url)) == [0, 1]


def test_a_conflict_of_two_puts(url: str, server: S3Server) -> None:
    """S3 may answer 409 when two puts of one file meet, such as two attempts."""
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    faults = [(409, False)]
    server.fault = lambda method, path: faults.pop() if faults and puts_manifest(method, path) else None
    published = writer.seal()
    assert not faults
    assert published is not None
    assert published.generation == 1
    writer.close()


def test_races_that_are_always_lost_end(url: str, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_LAST_DELAY", 0.01)
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    writer.seal()
    add_episodes(writer, [1])
    before = objects(url)
    server.fault = lambda method, path: (412, False) if puts_manifest(method, path) else None
    with pytest.raises(RemoteError, match="tried 20 times: other Writers published first"):
        writer.seal()
    # Tables, too: the server may still work at any of the puts.
    kinds = {file.partition("/")[0] for file in objects(url) - before}
    assert kinds == {"journals", "generations", "parts", "shards", "tables"}
    server.reset()
    published = writer.seal()
    assert published is not None
    assert published.generation == 2
    writer.close()
    assert numbers_in(gear_data.open(url)) == [0, 1]


def test_a_server_that_is_away(url: str, server: S3Server, tmp_path: Path) -> None:
    """Episodes wait in journals of this machine."""
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    server.fault = lambda method, path: (500, False)
    with pytest.raises(RemoteError, match="tried 5 times"):
        writer.flush()
    add_episodes(writer, [1])
    with pytest.raises(RemoteError):
        writer.seal()
    server.reset()
    writer.close()
    assert numbers_in(gear_data.open(url)) == [0, 1]


def test_many_journals_after_an_outage_are_open_one_at_a_time(
    url: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, they would be more files than a process may open, and no later upload would succeed."""
    counts = []
    before = open_journals()  # of other tests

    def counted(file: Path) -> Journal:
        gc.collect()
        counts.append(open_journals() - before)
        return read_journal(file)

    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    server.fault = lambda method, path: (500, False)
    monkeypatch.setattr(retry, "MAX_ATTEMPTS", 1)
    for number in range(1, 7):
        with pytest.raises(RemoteError):
            writer.flush()
        add_episodes(writer, [number])
    server.reset()
    monkeypatch.setattr(publisher, "read_journal", counted)
    monkeypatch.setattr(journal_folder, "read_journal", counted)
    assert writer._sink._publisher.num_waiting() == 6  # type: ignore[attr-defined]
    writer.close()
    assert numbers_in(gear_data.open(url)) == list(range(7))
    assert len(counts) >= 12 and max(counts) <= 1


def open_journals() -> int:
    """Returns the number of journals that this process has open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            found += str(descriptor.readlink()).endswith(".arrows")
    return found


def test_a_missing_episode_table(url: str) -> None:
    """Another process may have replaced it. Episodes are taken; the publication says what is missing."""
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [0])
    store = s3fs.S3FileSystem()
    [table] = [file for file in objects(url) if file.startswith("tables/episodes-")]
    path = f"{url.removeprefix('s3://')}/{table}"
    data = store.cat(path)
    store.rm(path)
    writer = gear_data.Writer(url)
    add_episodes(writer, [1])
    with pytest.raises(RemoteError, match="a file is missing"):
        writer.seal()
    store.pipe(path, data)
    writer.close()
    assert numbers_in(gear_data.open(url)) == [0, 1]


def test_flushed_episodes_outlive_the_machine(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journals of the machine are lost; a Writer of another machine publishes what was flushed."""
    lost = gear_data.Writer(url)
    add_episodes(lost, [0, 1])
    lost.flush()
    with pytest.raises(DatasetNotFoundError, match="a Writer records here"):
        gear_data.open(url)
    add_episodes(lost, [2])
    lost.flush()
    add_episodes(lost, [3])
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "another machine"))
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [10])
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1, 2, 10]


def test_journals_of_a_dead_writer_are_published(url: str, tmp_path: Path) -> None:
    """A Writer of the same machine finds the journals of one that was not closed."""
    dead, beside = gear_data.Writer(url), gear_data.Writer(url)
    for writer, number in ((dead, 0), (beside, 1)):
        add_episodes(writer, [number])
    for writer in (dead, beside):
        writer._sink._publisher.journals._stack.close()  # as the end of a process
    with gear_data.Writer(url) as writer:
        assert writer.episodes == 1
        add_episodes(writer, [2])
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1, 2]


def test_a_closed_writer_uploads_no_open_journal_of_another_one(url: str) -> None:
    with gear_data.Writer(url) as closed:
        pass
    with gear_data.Writer(url) as writer:
        for number in range(2):
            add_episodes(writer, [number])
            with pytest.raises(InvalidArgumentError, match="the Writer is closed"):
                closed.flush()
            closed._sink.flush()
    assert numbers_in(gear_data.open(url)) == [0, 1]


def test_uploaded_episodes_count(url: str) -> None:
    """A Writer that died after an upload: the next one has its episodes."""
    writer = gear_data.Writer(url)
    add_episodes(writer, [0, 1])
    writer.flush()
    add_episodes(writer, [2])
    writer._sink._publisher.journals._stack.close()
    again = gear_data.Writer(url)
    assert again.episodes == 1
    add_episodes(again, [3])
    published = again.close()
    assert published is not None
    assert published.episodes == 4
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1, 2, 3]


def test_a_copied_machine(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals of an image of a machine are published once, and later ones are those of their machine."""
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    writer._sink._journals._stack.close()  # type: ignore[attr-defined]
    shutil.copytree(tmp_path / "journals", tmp_path / "copy")
    for number, machine in enumerate(["journals", "copy"], 1):
        monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / machine))
        with gear_data.Writer(url) as writer:
            add_episodes(writer, [number])
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1, 2]


@pytest.mark.parametrize("removes", ["the manifest", "all"])
def test_a_journal_that_was_uploaded_when_its_dataset_was_replaced(url: str, removes: str, tmp_path: Path) -> None:
    """The process died before it removed the journal here."""
    store, root = s3fs.S3FileSystem(), url.removeprefix("s3://")
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [0])
    with gear_data.Writer(f"{url}-other") as writer:
        add_episodes(writer, [10])
    writer = gear_data.Writer(url)
    add_episodes(writer, [1])
    shutil.copytree(tmp_path / "journals", tmp_path / "copy")
    writer.flush()
    writer._sink._journals._stack.close()  # type: ignore[attr-defined]
    shutil.rmtree(tmp_path / "journals")
    shutil.copytree(tmp_path / "copy", tmp_path / "journals")
    if removes == "all":
        store.rm(root, recursive=True)
    for name in store.find(f"{root}-other"):
        store.pipe_file(name.replace(f"{root}-other", root), store.cat_file(name))
    with gear_data.Writer(url) as writer:
        assert writer.episodes == 1
    assert sorted(numbers_in(gear_data.open(url))) == [1, 10]


def test_uploaded_episodes_that_are_removed_with_their_dataset(url: str) -> None:
    store, root = s3fs.S3FileSystem(), url.removeprefix("s3://")
    writer = gear_data.Writer(url)
    add_episodes(writer, [0])
    writer.seal()
    add_episodes(writer, [1, 2])
    writer.flush()
    store.rm(root, recursive=True)
    add_episodes(writer, [3])
    with pytest.raises(DatasetReplacedError, match="2 episodes that this Writer had uploaded were removed"):
        writer.seal()
    published = writer.close()
    assert published is not None
    assert published.total_episodes == 1
    assert numbers_in(gear_data.open(url)) == [3]


def test_a_dataset_forgets_no_journal_that_is_there(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest would grow with each Writer. A server may refuse to remove what is published."""
    monkeypatch.setattr(next_generation, "REMEMBERED", 2)
    with monkeypatch.context() as patch:
        patch.setattr(generations, "remove_published", lambda *_: None)
        for number in range(2):
            with gear_data.Writer(url) as writer:
                add_episodes(writer, [number])
    sizes = []
    for number in range(2, 7):
        with gear_data.Writer(url) as writer:
            add_episodes(writer, [number])
        growth = gear_data.open(url).manifest.growth
        assert growth is not None
        sizes.append(len(growth.sealed))
    assert sizes == [3, 2, 2, 2, 2]
    assert sorted(numbers_in(gear_data.open(url))) == list(range(7))


def test_journals_of_another_dataset_are_not_those_of_the_url(url: str) -> None:
    """A dataset that was moved away comes back. Its numbers are not those of the journals that wait meanwhile."""
    store, root = s3fs.S3FileSystem(), url.removeprefix("s3://")
    with gear_data.Writer(url) as writer:
        for number in range(4):
            add_episodes(writer, [number])
            writer.seal()
    moved = {name: store.cat_file(name) for name in store.find(root)}
    store.rm(root, recursive=True)
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [4])
    writer = gear_data.Writer(url)
    add_episodes(writer, [5])
    writer._sink._journals._stack.close()  # type: ignore[attr-defined]
    store.invalidate_cache()
    store.rm(root, recursive=True)
    for name, data in moved.items():
        store.pipe_file(name, data)
    with gear_data.Writer(url) as writer:
        assert writer.episodes == 1
    assert numbers_in(gear_data.open(url)) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("published", ["not yet", "before", "meanwhile"])
def test_a_machine_that_was_copied_while_a_writer_ran(
    url: str, published: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both copies number the journals of one series. One notices it, keeps its episodes, and begins another series."""
    first = gear_data.Writer(url)
    monkeypatch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "copy"))
    second = gear_data.Writer(url)
    series = new_series()
    with monkeypatch.context() as patch:
        patch.setattr(journal_folder, "new_series", lambda _: series)
        for writer, number in ((first, 0), (second, 1)):
            add_episodes(writer, [number])
    first.flush()
    if published != "not yet":
        first.seal()
    if published == "meanwhile":
        bucket = second._sink._publisher._bucket  # type: ignore[attr-defined]
        seen = iter([None])
        newest = bucket.newest
        monkeypatch.setattr(bucket, "newest", lambda: next(seen) if seen.__length_hint__() else newest())
    second.flush()
    assert kept(url) == [[1]]
    add_episodes(second, [2])
    for writer in (second, first):
        writer.close()
    assert sorted(numbers_in(gear_data.open(url))) == [0, 2]
    assert gear_data.verify(url, deep=True, progress=False).ok
    assert not any(file.startswith("journals/") for file in objects(url))


def test_a_journal_that_comes_back_when_its_series_is_forgotten(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_generation, "REMEMBERED", 2)
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [0])
        shutil.copytree(tmp_path / "journals", tmp_path / "copy")
    for number in range(1, 4):
        with gear_data.Writer(url) as writer:
            add_episodes(writer, [number])
    shutil.rmtree(tmp_path / "journals")
    shutil.copytree(tmp_path / "copy", tmp_path / "journals")
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [4])
    assert sorted(numbers_in(gear_data.open(url))) == [0, 1, 2, 3, 4]
    assert kept(url) == [[0]]


def kept(url: str) -> list[list[int]]:
    """Returns the numbers of the episodes of each entry in the quarantine of this machine."""
    found = [read_journal(entry.episodes).episodes for entry in entries(journal_base(url))]
    return [[int(episode.facts["number"]) for episode in episodes] for episodes in found]


def test_eviction_keeps_objects_for_a_while(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps its generation for the time that is set; later its files are gone."""
    writer = gear_data.Writer(url, shard_bytes=1024, max_steps=30)
    add_episodes(writer, range(5))
    writer.seal()
    ds, late = gear_data.open(url), gear_data.open(url, cache_dir=tmp_path / "unused")
    add_episodes(writer, range(5, 20))
    published = writer.seal()
    assert published is not None
    assert published.evicted_episodes
    assert numbers_in(ds) == [0, 1, 2, 3, 4]
    monkeypatch.setenv("GEAR_DATA_KEEP_SECONDS", "0.1")
    time.sleep(1.1)  # the times of objects are whole seconds
    add_episodes(writer, range(20, 22))
    writer.seal()
    time.sleep(1.1)
    add_episodes(writer, range(22, 24))
    writer.close()
    newest = gear_data.open(url)
    assert newest.num_steps <= 30
    assert numbers_in(ds) == [0, 1, 2, 3, 4]  # from the cache of this machine
    with pytest.raises(GenerationGoneError, match="generation 1 is no longer"):
        numbers_in(late)
    with pytest.raises(GenerationGoneError):
        newest.at_generation(1)
    before = numbers_in(newest.at_generation(3)), numbers_in(newest)
    assert all(set(numbers) <= set(range(24)) for numbers in before)
    left = {file for file in objects(url) if file.startswith(("shards/", "tables/"))}
    assert left == _files(newest) | _files(newest.at_generation(3))
    assert gear_data.verify(url, progress=False).ok


def test_a_late_copy_of_an_old_generation(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Writer that loses a race copies an old manifest again, and cleans up with what it knows."""
    writer = gear_data.Writer(url)
    for number in range(3):
        add_episodes(writer, [number])
        writer.seal()
    store, root = s3fs.S3FileSystem(), url.removeprefix("s3://")
    time.sleep(1.1)  # the times of objects are whole seconds
    store.pipe(f"{root}/generations/000001.json", store.cat(f"{root}/generations/000001.json"))
    monkeypatch.setenv("GEAR_DATA_KEEP_SECONDS", "0.1")
    bucket = Bucket(url)
    stale = bucket.manifest("generations/000002.json")
    assert stale is not None
    retirement.remove_replaced(bucket, Mirror(tmp_path / "mirror", bucket.objects), stale)
    assert {"generations/000001.json", "generations/000002.json"} <= objects(url)
    assert numbers_in(gear_data.open(url)) == [0, 1, 2]
    assert numbers_in(gear_data.open(url).at_generation(2)) == [0, 1]
    writer.close()


def test_unfinished_uploads_are_removed_later(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Writer dies between its puts, and its machine is lost."""
    with gear_data.Writer(url) as writer:
        add_episodes(writer, range(3))
    store = s3fs.S3FileSystem()
    root = url.removeprefix("s3://")
    orphans = {
        "shards/0123456789abcdef-000000-0000.arrow",
        "videos/0123456789abcdef-000000/front/000000.mp4",
        "parts/0123456789abcdef-000000.json",
        "journals/0123456789abcdef-000000/episodes.arrow",
        "tables/episodes-000001-01234567.arrow",
        "shards/000001-01234567-joined.arrow",
        "tables/video_packets-000009-01234567.arrow",
        "journals/probe-0123",
    }
    for file in orphans:
        store.pipe(f"{root}/{file}", b"x")
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [3])
    assert orphans < objects(url)
    monkeypatch.setattr(retirement, "_UNFINISHED", timedelta(seconds=0.5))
    before = objects(url)
    time.sleep(1.1)
    with gear_data.Writer(url) as writer:
        add_episodes(writer, [4])
    assert before - objects(url) >= orphans
    ds = gear_data.open(url)
    assert numbers_in(ds) == [0, 1, 2, 3, 4]
    for generation in (1, 2):
        assert numbers_in(gear_data.open(url, cache_dir=tmp_path / f"cache{generation}").at_generation(generation))
    assert gear_data.verify(url, deep=True, progress=False).ok


def test_videos(url: str) -> None:
    frames = np.zeros((6, 32, 32, 3), np.uint8)
    frames[range(6), :, range(6)] = 255
    writer = gear_data.Writer(url, cameras={"observations.images.front": gear_data.Camera(fps=30)})
    for number in range(3):
        for t, frame in enumerate(frames):
            writer.append(observations={"images": {"front": frame}}, actions=10 * number + t)
        writer.end_episode(terminated=True)
        writer.seal()
    writer.close()
    ds = gear_data.open(url)
    assert len(ds) == 3
    for position in range(3):
        assert ds[position]["actions"].tolist() == [10 * position + t for t in range(6)]
        assert np.abs(ds[position]["observations.images.front"][:].astype(int) - frames).mean() < 20
    assert gear_data.verify(url, deep=True, progress=False).ok


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_a_loader_takes_new_generations(url: str, residency: str) -> None:
    writer = gear_data.Writer(url)
    add_episodes(writer, range(4))
    writer.seal()
    ds = gear_data.open(url, residency)
    loader = gear_data.SequenceLoader(ds, batch_size=16, context=2, preset="jat", seed=1)
    batches = iter(loader)
    assert np.asarray(next(batches)["actions"]).max() < 400
    add_episodes(writer, range(4, 30))
    writer.close()
    loader.refresh()
    assert max(np.asarray(next(batches)["actions"]).max() for _ in range(20)) >= 400
    batches.close()


def test_the_command(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "CartPole-v1", url, "--episodes", "2"]) == 0
    assert f"in {url}, generation 1" in capsys.readouterr().out


def test_record_an_environment(url: str) -> None:
    for generation in (1, 2):
        published = record_episodes("CartPole-v1", url, 2, progress=False)
        assert published is not None
        assert (published.generation, published.total_episodes) == (generation, 2 * generation)
    assert len(gear_data.open(url)) == 4


def test_places_that_are_refused(url: str, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ignored = CONDITIONS
    with pytest.raises(InvalidArgumentError, match="ignores the conditions of puts"):
        gear_data.Writer(url)
    server.reset()
    limit = gear_data.RateLimit(min_steps=1)
    with pytest.raises(InvalidArgumentError, match="rate_limit needs a folder"):
        gear_data.Writer(url, rate_limit=limit)
    with monkeypatch.context() as patch, pytest.raises(InvalidArgumentError, match="GEAR_DATA_KEEP_SECONDS"):
        patch.setenv("GEAR_DATA_KEEP_SECONDS", "-1")
        gear_data.Writer(url)
    store = s3fs.S3FileSystem()
    store.pipe(f"{url.removeprefix('s3://')}/.progress/options.json", b"{}")
    with pytest.raises(DestinationExistsError, match="a conversion into this folder"):
        gear_data.Writer(url)
    store.pipe(f"{url.removeprefix('s3://')}2/notes.txt", b"mine")
    with pytest.raises(DestinationExistsError, match=r"it has notes\.txt"):
        gear_data.Writer(f"{url}2")
