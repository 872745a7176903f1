"""Writers send episodes to a server. The server, the writer or the connection breaks."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import gear_data
from gear_data.cli import main
from gear_data.cluster.writing.messages import ACTION, writer_hello
from gear_data.errors import (
    EpisodeRefusedError,
    ForkedProcessError,
    InvalidArgumentError,
    NodeUnreachableError,
)
from gear_data.recording.writer import Writer
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import arrow_schema
from tests.support.cluster.writers import WriteServerProcess, add_episode, order_of, recorded_here, steps_of

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WriteServerProcess]:
    process = WriteServerProcess(tmp_path / "sent")
    process.wait()
    yield process
    process.kill()


def test_the_dataset_is_that_of_a_plain_recording(tmp_path: Path, server: WriteServerProcess) -> None:
    with Writer(server.url, durability="flush") as writer:
        for number in range(30):
            add_episode(writer, number, env_id=number % 3)
        writer.append(
            observations={"position": np.zeros(3, np.float32), "image": np.zeros((4, 4, 3), np.uint8)},
            actions=np.int64(0),
            infos={"words": ""},
        )
        with pytest.raises(InvalidArgumentError, match="the server makes the dataset"):
            writer.seal()
        assert writer.open_episodes() == [0]
        writer.discard()
        assert writer.episodes == 30
    with pytest.raises(InvalidArgumentError, match="the Writer is closed"):
        add_episode(writer, 30)
    report = server.end()
    assert (report["episodes"], report["steps"]) == (30, sum(map(steps_of, range(30))))
    expected = recorded_here(tmp_path / "here", [(0, number) for number in range(30)])
    assert gear_data.open(tmp_path / "sent").fingerprint == expected.fingerprint
    assert gear_data.verify(tmp_path / "sent").ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "sent"]


def test_environments_are_recorded(tmp_path: Path, server: WriteServerProcess) -> None:
    assert main(["record", "CartPole-v1", server.url, "--episodes", "3", "--seed", "5"]) == 0
    env = gear_data.record(gymnasium.make("CartPole-v1"), server.url, durability="flush")
    env.reset(seed=9)
    while not any(env.step(1)[2:4]):
        pass
    env.close()
    assert server.end()["episodes"] == 4
    main(["record", "CartPole-v1", str(tmp_path / "here"), "--episodes", "3", "--seed", "5"])
    sent, here = gear_data.open(tmp_path / "sent"), gear_data.open(tmp_path / "here")
    assert sent.select([0, 1, 2]).episodes["return"].to_list() == here.episodes["return"].to_list()
    assert sent.episodes["seed"].to_list() == [5, 6, 7, 9]


def test_an_episode_is_on_the_servers_disk_when_it_ends(tmp_path: Path, server: WriteServerProcess) -> None:
    with Writer(server.url) as writer:
        for number in range(3):
            add_episode(writer, number)
            [journal] = tmp_path.glob("sent.journal/*/*.arrows")
            assert [each.facts["number"] for each in read_journal(journal).episodes] == list(range(number + 1))


def test_a_refused_episode_is_refused_alone(tmp_path: Path, server: WriteServerProcess) -> None:
    """The server checks what publication will check. Episodes before and after stay, also those of other writers."""

    def record(writer: Writer, **facts: object) -> None:
        writer.append(actions=1.0)
        writer.end_episode(terminated=True, **facts)

    with Writer(server.url) as first, Writer(server.url, durability="flush") as second:
        record(first, attempt=1)
        with pytest.raises(EpisodeRefusedError, match="earlier episodes have whole numbers") as error:
            record(first, attempt="x")
        assert (error.value.sequence, first.open_episodes()) == (1, [])
        record(first, attempt=2)
        for attempt in (3, True, 4):
            record(second, attempt=attempt)
        with pytest.raises(EpisodeRefusedError, match="refused episode 1 of this Writer"):
            second.flush()
        second.flush()
        record(first, attempt=5)
    server.end()
    assert gear_data.open(tmp_path / "sent").episodes["attempt"].to_list() == [1, 2, 3, 4, 5]


def test_a_server_says_whether_the_dataset_has_final_observations(tmp_path: Path) -> None:
    """A converted dataset without them grows, and a final observation is refused before it is sent."""
    end = {"terminated": True, "rewards": np.zeros(2), "actions": np.zeros(2, np.int64)}
    gear_data.convert([{**end, "observations": np.zeros((2, 4), np.float32)}], tmp_path / "sent", progress=False)
    server = WriteServerProcess(tmp_path / "sent")
    server.wait()
    with Writer(server.url, durability="os") as writer:
        assert writer.columns is not None
        assert {each.name: each.has_final for each in writer.columns} == {
            "observations": False, "actions": False, "rewards": False
        }  # fmt: skip
        writer.append(rewards=1.0, observations=np.ones(4, np.float32), actions=1)
        with pytest.raises(InvalidArgumentError, match="the dataset has no final observations"):
            writer.end_episode(terminated=True, final=np.ones(4, np.float32))
        with pytest.raises(InvalidArgumentError, match="facts are text, finite numbers"):
            writer.end_episode(terminated=True, task=None)
        writer.end_episode(terminated=True)
    env = gear_data.record(gymnasium.make("CartPole-v1"), server.url)  # leaves final observations out
    env.reset(seed=9)
    while not any(env.step(1)[2:4]):
        pass
    env.close()
    server.end()
    ds = gear_data.open(tmp_path / "sent")
    assert (len(ds), ds[1]["observations"].tolist()) == (3, [[1.0] * 4])


def test_an_open_episode_ends_as_truncated(tmp_path: Path, server: WriteServerProcess) -> None:
    with Writer(server.url, durability="os") as writer:
        writer.append(actions=1.0)
        writer.append(actions=2.0)
    server.end()
    ds = gear_data.open(tmp_path / "sent")
    assert ds.episodes.select("length", "truncated").rows() == [(2, True)]


def test_a_signal_that_interrupts_no_wait_ends_the_server(server: WriteServerProcess) -> None:
    """A signal just before a wait does not interrupt it; nor does one that another thread gets."""
    with Writer(server.url, durability="flush") as writer:
        add_episode(writer, 0)
    threads = Path(f"/proc/{server.pid}/task")
    other = next(
        int(thread.name)
        for thread in threads.iterdir()
        if int(thread.name) != server.pid and "SigBlk:\t0000000000000000" in (thread / "status").read_text()
    )
    assert ctypes.CDLL(None).tgkill(server.pid, other, signal.SIGTERM) == 0
    assert server.report()["episodes"] == 1


def test_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """Every episode is there once, in order. Kills hit publications, too."""
    count, choose = 200, random.Random(5)
    server = WriteServerProcess(tmp_path / "sent", ["--publish-every", "0.05"])
    server.wait()

    def record() -> None:
        with Writer(server.url, durability="flush") as writer:
            for number in range(count):
                add_episode(writer, number)
                if number % 20 == 19:
                    writer.flush()

    thread = threading.Thread(target=record)
    thread.start()
    kills = 0
    while thread.is_alive():
        thread.join(choose.uniform(0.0, 0.4))
        if kills < 4:
            kills += 1
            server.kill()
            server.begin()
            server.wait()
    assert kills == 4
    server.end()
    ds = gear_data.open(tmp_path / "sent")
    assert ds.generation > 1
    assert order_of(ds) == [(0, number) for number in range(count)]
    assert ds.fingerprint == recorded_here(tmp_path / "here", order_of(ds)).fingerprint


def record_for_ever(url: str, number_of_writer: int, pipe: Connection) -> None:
    writer = Writer(url, durability="flush")
    for number in range(100_000):
        add_episode(writer, number, number_of_writer)
        if number % 4 == 3:
            writer.flush()
            pipe.send(number)


@pytest.mark.usefixtures("quick_spawn")
def test_writers_that_are_killed(tmp_path: Path, server: WriteServerProcess) -> None:
    """Two writers at once. What the server acknowledged is there, and nothing is there twice."""
    choose, acknowledged = random.Random(6), {}
    for first in range(0, 4, 2):
        running = []
        for number in (first, first + 1):
            reader, sender = multiprocessing.Pipe(duplex=False)
            # Not by a fork: gRPC, which this process uses, may hang in a forked child.
            context = multiprocessing.get_context("spawn")
            child = context.Process(target=record_for_ever, args=(server.url, number, sender))
            child.start()
            sender.close()
            running.append((number, child, reader))
        for number, _, reader in running:
            acknowledged[number] = reader.recv()  # waits for the first ones
        time.sleep(choose.uniform(0.0, 0.5))
        for number, child, reader in running:
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            with suppress(EOFError):
                while True:
                    acknowledged[number] = reader.recv()
    server.end()
    ds = gear_data.open(tmp_path / "sent")
    order = order_of(ds)
    for number, last in acknowledged.items():
        kept = [episode for writer, episode in order if writer == number]
        assert kept == list(range(len(kept)))
        assert len(kept) > last >= 3
    assert ds.fingerprint == recorded_here(tmp_path / "here", order).fingerprint


def patiently(call: Callable[[], None]) -> None:
    """Calls a function until the server answers in time."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except NodeUnreachableError:
            assert time.monotonic() < deadline


def test_a_server_that_hangs(tmp_path: Path, server: WriteServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer keeps as many episodes as fit into its buffer, waits, and raises. Nothing is lost."""
    monkeypatch.setenv("GEAR_DATA_WRITE_TIMEOUT", "1")
    monkeypatch.setenv("GEAR_DATA_WRITE_BUFFER", "30000")
    writer = Writer(server.url, durability="flush")
    add_episode(writer, 0)
    patiently(writer.flush)
    server.stop()
    begin = time.monotonic()
    number, failed = 1, 0
    while not failed:
        try:
            add_episode(writer, number)
            number += 1
        except NodeUnreachableError as error:
            assert f"{server.url}: did not acknowledge {number - 1} episodes within 1 s" in str(error)
            failed = number
    assert 2 <= failed <= 40 and writer._sink._sender._bytes <= 30_000
    assert 1.0 <= time.monotonic() - begin < 10.0
    assert writer.episodes == failed
    with pytest.raises(NodeUnreachableError):
        writer.flush()
    with pytest.raises(NodeUnreachableError):
        writer.close()
    server.resume()
    patiently(writer.close)  # ends the open episode, too
    server.end()
    ds = gear_data.open(tmp_path / "sent")
    assert order_of(ds)[:failed] == [(0, number) for number in range(failed)]
    assert len(ds) == failed + 1 and ds.episodes["length"][-1] == steps_of(failed)


def test_a_forked_child_cannot_use_the_writer(server: WriteServerProcess) -> None:
    with Writer(server.url, durability="flush") as writer:
        add_episode(writer, 0)

        def use() -> None:
            try:
                add_episode(writer, 1)
            except ForkedProcessError:
                os._exit(9)

        child = multiprocessing.get_context("fork").Process(target=use)
        child.start()
        add_episode(writer, 1)
        writer.flush()
        child.join(120)
        assert child.exitcode == 9
    assert server.end()["episodes"] == 2


def test_urls_and_arguments_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="sends to one server, and gear://a:1,b:2 names 2"):
        Writer("gear://a:1,b:2")
    with pytest.raises(InvalidArgumentError, match="not on this machine: it needs a token"):
        Writer("gear://10.0.0.1:7000")
    with pytest.raises(InvalidArgumentError, match="has no conditional puts"):
        Writer("memory://bucket/runs")
    with pytest.raises(NodeUnreachableError, match="cannot be reached"):
        Writer("gear://127.0.0.1:1")
    for name, value in (("TIMEOUT", "0"), ("BUFFER", "many")):
        with monkeypatch.context() as patch:
            patch.setenv(f"GEAR_DATA_WRITE_{name}", value)
            with pytest.raises(InvalidArgumentError, match=f"GEAR_DATA_WRITE_{name}"):
                Writer("gear://127.0.0.1:1")


def test_a_server_with_limits(tmp_path: Path) -> None:
    """Training makes the writer wait, and the server evicts the oldest episodes."""
    limit = gear_data.RateLimit(min_steps=50, samples_per_insert=2.0, error=200.0)
    options = ["--min-steps", "50", "--samples-per-insert", "2", "--samples-error", "200", "--max-steps", "300"]
    process = WriteServerProcess(tmp_path / "d", ["--publish-every", "0.2", *options])
    process.wait()

    def send() -> None:
        with Writer(process.url, durability="flush") as writer:
            for number in range(60):
                add_episode(writer, number)

    thread = threading.Thread(target=send)
    thread.start()
    ds = gear_data.open(tmp_path / "d", follow=True)
    loader = gear_data.SequenceLoader(ds, batch_size=32, context=1, columns=["actions"])
    rows, total = 0, sum(map(steps_of, range(60)))
    for batch in gear_data.rate_limited(loader, tmp_path / "d", limit):
        if not thread.is_alive():
            # Beyond the margin, the writer inserts at most one episode.
            assert rows >= (total - 40 - 50) * 2 - 200
        rows += len(batch["actions"])
        if rows >= (total - 50) * 2 - 200:
            break
    thread.join()
    process.end()
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["length"].sum() <= 300 < total
    assert order_of(ds) == [(0, number) for number in range(60 - len(ds), 60)]


def test_a_server_that_cannot_publish_ends_beside_an_open_call(tmp_path: Path, server: WriteServerProcess) -> None:
    with Writer(server.url) as writer:
        add_episode(writer, 0)
    columns = writer.columns or ()
    (tmp_path / "sent").touch()  # in the way of the dataset
    client = flight.connect(f"grpc://{server.address}")
    hello = writer_hello("hangs", columns)
    call, _ = client.do_put(flight.FlightDescriptor.for_command(hello), arrow_schema(columns))
    list(client.do_action(flight.Action(ACTION, hello)))  # the server has the call, too
    assert server.end()["error"] == "UnwritableError"
    assert server._running.returncode == 1
    with suppress(pa.ArrowException, OSError):
        call.close()
    client.close()
    (tmp_path / "sent").unlink()
    Writer(tmp_path / "sent").close()
    assert order_of(gear_data.open(tmp_path / "sent")) == [(0, 0)]
