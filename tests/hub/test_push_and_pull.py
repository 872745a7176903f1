"""`gear-data push` and `pull`, by the real library against a server that speaks the hub's API.

The library reads HF_ENDPOINT when it is imported, so each command is a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import GearError, InvalidArgumentError
from gear_data.storage.manifest import Manifest
from tests.support.checks import folder_contents
from tests.support.rollouts import make_rollouts
from tests.support.running.eventually import eventually
from tests.support.running.hub_server import Hub, running_hub
from tests.support.running.warm_python import python

pytestmark = pytest.mark.processes

NAME = "me/hops"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of several shards with final observations. Its folder has other files, too."""
    rollouts = make_rollouts(40, seed=2)
    episodes = [
        {**each.columns, "observations": np.concatenate([each.columns["observations"], each.final[None]])}
        for each in rollouts
    ]
    gear_data.convert(episodes, tmp_path / "data", shard_bytes=1024, progress=False)
    (tmp_path / "data/notes.txt").write_text("private")
    (tmp_path / "data/sidecars").mkdir()
    (tmp_path / "data/sidecars/x.json").write_text("{}")
    assert len(Manifest.load(tmp_path / "data").shards) > 5
    return tmp_path / "data"


class Client:
    """Runs commands of gear-data in processes of their own."""

    def __init__(self, hub: Hub, home: Path) -> None:
        known = {"HF_HOME": str(home), "GEAR_DATA_CACHE": str(home / "cache")}
        self._environment = {**os.environ, **hub.environment(), **known}

    def start(self, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
        command = [python(), "-m", "gear_data.cli", *map(str, arguments), "--json"]
        environment = {**self._environment, **environment}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: Any, status: int = 0, **environment: str) -> dict[str, Any]:
        process = self.start(*arguments, **environment)
        out, error = process.communicate(timeout=120)
        assert process.returncode == status, error
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def client(hub: Hub, tmp_path: Path) -> Client:
    return Client(hub, tmp_path / "home")


def _data_files(folder: Path) -> dict[str, bytes]:
    """Returns the files that are pushed. The manifest on the hub names no local folder."""
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    contents["manifest.json"] = Manifest.load(folder).without_folders().to_text().encode()
    return {name: data for name, data in contents.items() if name != "notes.txt" and not name.startswith("sidecars")}


def test_a_dataset_comes_back_as_it_was(dataset: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    pushed = client.run("push", dataset, NAME, "--private", "--message", "first")
    repository = hub.repositories[NAME]
    files = dict(repository.files())
    assert files.pop(".gitattributes")
    assert files == _data_files(dataset)
    assert repository.private and repository.messages == ["initial commit", "first"]
    assert pushed["commit"] == repository.head("main") and pushed["files"] == len(files)
    pulled = client.run("pull", NAME, tmp_path / "out")
    assert folder_contents(tmp_path / "out") == _data_files(dataset)
    assert pulled["fingerprint"] == pushed["fingerprint"] == gear_data.open(dataset).fingerprint
    assert pulled["commit"] == pushed["commit"]
    assert not list(tmp_path.glob(".*"))
    assert client.run("pull", NAME, tmp_path / "out", status=1)["error"] == "DestinationExistsError"


def test_a_dataset_is_no_source(dataset: Path, client: Client) -> None:
    """Its card shows `datasets` the shards alone: without episodes, final observations and facts."""
    pushed = client.run("push", dataset, NAME)
    for name, url in ((NAME, f"hf://datasets/{NAME}"), (f"{NAME}@main", f"hf://datasets/{NAME}@main")):
        refused = client.run("inspect", name, status=1)
        assert refused["error"] == "UnknownFormatError" and "is already a gear dataset" in refused["message"]
        assert f"open it by its URL, {url}; or" in refused["message"]
        assert client.run("inspect", url)["fingerprint"] == pushed["fingerprint"]


def test_another_dataset_takes_the_place_of_the_first(dataset: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    client.run("push", dataset, NAME)
    first = hub.repositories[NAME].head("main")
    hub.repositories[NAME].files()["LICENSE"] = b"mine"
    view = gear_data.open(dataset)[:3]
    view.save(tmp_path / "few", progress=False)
    uploads = len(hub.uploads)
    report = client.run("push", tmp_path / "few", NAME)
    files = dict(hub.repositories[NAME].files())
    assert files.pop("LICENSE") == b"mine" and files.pop(".gitattributes")
    assert files == _data_files(tmp_path / "few")
    assert str(tmp_path) in (tmp_path / "few/manifest.json").read_text()
    assert not any(str(tmp_path).encode() in data for data in files.values())
    assert report["removed"] == len(Manifest.load(dataset).shards) - len(Manifest.load(tmp_path / "few").shards)
    assert len(hub.uploads) > uploads
    assert client.run("pull", NAME, tmp_path / "out")["episodes"] == 3
    old = client.run("pull", NAME, tmp_path / "out", "--overwrite", "--revision", first)
    assert old["episodes"] == 40 and gear_data.verify(tmp_path / "out").ok
    assert "LICENSE" not in folder_contents(tmp_path / "out")
    branch = client.run("push", tmp_path / "few", NAME, "--revision", "small")
    assert hub.repositories[NAME].branches["small"][-1] == branch["commit"] != hub.repositories[NAME].head("main")


def test_an_edited_dataset_is_pushed_and_pulled(dataset: Path, client: Client, tmp_path: Path) -> None:
    edited = gear_data.open(dataset).with_column("double", lambda episode: 2 * episode["rewards"]).drop("actions")
    edited.save(tmp_path / "edited", progress=False)
    client.run("push", tmp_path / "edited", NAME)
    client.run("pull", NAME, tmp_path / "out")
    assert _data_files(tmp_path / "out") == _data_files(tmp_path / "edited")
    assert gear_data.open(tmp_path / "out").fingerprint == edited.fingerprint


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()  # the program ends a little after the process that stands for it: see `warm_python`


def test_a_killed_push_continues(dataset: Path, hub: Hub, client: Client) -> None:
    """The second run sends no file that the first one has sent, and one commit has all files."""
    arrived, go_on = threading.Event(), threading.Event()

    def wait_at_the_fourth(before: int) -> None:
        if before >= 3:
            arrived.set()
            go_on.wait(60)

    hub.on_upload = wait_at_the_fourth
    process = client.start("push", dataset, NAME)
    assert arrived.wait(60) and eventually(lambda: len(hub.uploads) == 3)
    _kill(process)
    hub.on_upload = lambda before: None
    sent = set(hub.uploads)
    assert len(sent) == 3 < len(Manifest.load(dataset).shards)
    assert hub.repositories[NAME].files().keys() == {".gitattributes"}
    before = len(hub.uploads)
    client.run("push", dataset, NAME)
    assert not sent & set(hub.uploads[before:])
    go_on.set()
    assert _data_files(dataset).items() <= hub.repositories[NAME].files().items()
    again = len(hub.uploads)
    client.run("push", dataset, NAME)
    assert len(hub.uploads) <= again + 8  # the killed run's requests may be stored late, and nothing else


def test_a_killed_pull_continues(dataset: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    client.run("push", dataset, NAME)
    arrived, go_on = threading.Event(), threading.Event()
    *others, last = (shard.entry.file for shard in Manifest.load(dataset).shards)

    def wait(line: str) -> None:
        if line.startswith("GET") and line.endswith(last):
            arrived.set()
            go_on.wait(60)

    hub.on_request = wait
    process = client.start("pull", NAME, tmp_path / "out")
    assert arrived.wait(60)
    assert eventually(lambda: all((tmp_path / ".out.gear-pull" / file).exists() for file in others))
    _kill(process)
    go_on.set()
    hub.on_request = lambda line: None
    assert not (tmp_path / "out").exists()
    hub.requests.clear()
    client.run("pull", NAME, tmp_path / "out")
    fetched = [line for line in hub.requests if line.startswith("GET") and "/resolve/" in line]
    assert 1 <= len(fetched) < len(_data_files(dataset)) / 2
    assert folder_contents(tmp_path / "out") == _data_files(dataset)


def test_files_that_a_power_loss_damaged(hub: Hub, client: Client, tmp_path: Path) -> None:
    """The files of a killed pull have their sizes, and zeros. The library's notes say that they are there."""
    pytest.importorskip("av")
    from tests.support.cameras.robots import write_robot

    write_robot(tmp_path / "robot", make_rollouts(3, seed=0))
    gear_data.convert(tmp_path / "robot", tmp_path / "kept", progress=False, jobs=1)
    client.run("push", tmp_path / "kept", NAME)
    hub.on_request = lambda line: 403 if "/shards/" in line else None
    assert client.run("pull", NAME, tmp_path / "out", status=1)["error"] == "RemoteError"
    hub.on_request = lambda line: None
    staging = tmp_path / ".out.gear-pull"
    left = [path for path in staging.iterdir() if path.is_file()]
    assert {"manifest.json", "README.md", "episodes.arrow", "videos.arrow"} <= {path.name for path in left}
    for path in left:
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    client.run("pull", NAME, tmp_path / "out")
    assert folder_contents(tmp_path / "out") == _data_files(tmp_path / "kept")


def test_a_disk_that_refuses_a_pull(dataset: Path, client: Client, tmp_path: Path) -> None:
    """The library's own errors of files are typed, too."""
    client.run("push", dataset, NAME)
    (tmp_path / ".out.gear-pull").mkdir()
    blocking = tmp_path / ".out.gear-pull/.cache"
    blocking.touch()
    refused = client.run("pull", NAME, tmp_path / "out", status=1)
    assert refused["error"] == "UnwritableError" and str(tmp_path / "out") in refused["message"]
    blocking.unlink()
    client.run("pull", NAME, tmp_path / "out")
    assert folder_contents(tmp_path / "out") == _data_files(dataset)


def test_damage_on_the_hub_is_found(dataset: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    client.run("push", dataset, NAME)
    files = hub.repositories[NAME].files()
    shard = Manifest.load(dataset).shards[2].entry.file
    sound, damaged = files[shard], bytearray(files[shard])
    damaged[len(damaged) // 2] ^= 1
    files[shard] = bytes(damaged)
    found = client.run("pull", NAME, tmp_path / "out", status=1)
    assert found["error"] == "CorruptShardError" and shard in found["message"]
    assert not (tmp_path / "out").exists()
    files[shard] = sound
    client.run("pull", NAME, tmp_path / "out")
    assert folder_contents(tmp_path / "out") == _data_files(dataset)
    del files[shard]
    lacking = client.run("pull", NAME, tmp_path / "other", status=1)
    assert lacking["error"] == "CorruptShardError" and "lacks 1" in lacking["message"]


def test_a_damaged_shard_is_not_pushed(dataset: Path, hub: Hub, client: Client) -> None:
    shard = dataset / Manifest.load(dataset).shards[-1].entry.file
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert client.run("push", dataset, NAME, status=1)["error"] == "CorruptShardError"
    assert hub.repositories[NAME].files().keys() == {".gitattributes"}
    assert hashlib.sha256(content).hexdigest() not in hub.objects


def test_what_the_hub_refuses(dataset: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    refused = client.run("push", dataset, NAME, status=1, HF_TOKEN="hf_wrong")
    assert refused["error"] == "RemoteError" and "hf auth login" in refused["message"]
    absent = client.run("pull", "me/nothing", tmp_path / "out", status=1)
    assert absent["error"] == "DatasetNotFoundError" and "private" in absent["message"]
    client.run("push", dataset, NAME)
    revision = client.run("pull", NAME, tmp_path / "out", "--revision", "v9", status=1)
    assert revision["error"] == "DatasetNotFoundError" and "revision" in revision["message"]
    del hub.repositories[NAME].files()["manifest.json"]
    assert "no GEAR dataset" in client.run("pull", NAME, tmp_path / "out", status=1)["message"]
    hub.on_request = lambda line: 503 if "preupload" in line else None
    failed = client.run("push", dataset, NAME, status=1)
    assert failed["error"] == "RemoteError" and "run the same command again" in failed["message"]
    unreachable = client.run("pull", NAME, tmp_path / "out", status=1, HF_ENDPOINT="http://127.0.0.1:9")
    assert unreachable["error"] == "RemoteError"
    assert not (tmp_path / "out").exists()


def test_a_listing_that_the_hub_refuses(dataset: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    """`pull` lists the files, and the library does again."""
    client.run("push", dataset, NAME)
    listed: list[str] = []

    def refuse(line: str) -> int | None:
        if listed and ("/tree/" in line or "/revision/" in line):
            return 403
        listed.extend([line] if "/tree/" in line else [])
        return None

    hub.on_request = refuse
    refused = client.run("pull", NAME, tmp_path / "out", status=1)
    assert refused["error"] == "RemoteError" and "manifest.json" in refused["message"]
    hub.on_request = lambda line: None
    client.run("pull", NAME, tmp_path / "out")
    assert folder_contents(tmp_path / "out") == _data_files(dataset)


def test_another_commit_meanwhile(dataset: Path, hub: Hub, client: Client) -> None:
    client.run("push", dataset, NAME)
    repository = hub.repositories[NAME]

    def commit(line: str) -> None:
        if line.startswith("POST") and "/commit/" in line:
            repository.commits["f" * 40] = {**repository.files(), "other": b""}
            repository.branches["main"].append("f" * 40)

    hub.on_request = commit
    gear_data.open(dataset)[:2].save(dataset.parent / "few", progress=False)
    refused = client.run("push", dataset.parent / "few", NAME, status=1)
    assert refused["error"] == "RemoteError" and "commit has happened" in refused["message"].lower()


@pytest.mark.parametrize("name", ["hops", "me/", "a/b/c", "", "me/ho ps", 7])
def test_names(name: Any, dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="USER/NAME"):
        gear_data.push(dataset, name)
    with pytest.raises(InvalidArgumentError, match="USER/NAME"):
        gear_data.pull(name, tmp_path / "out")


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_a_dataset_is_pulled_to_a_name(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(GearError, match="end in a name" if path == "." else "not empty"):
        gear_data.pull(NAME, path)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_datasets_that_cannot_be_pushed(tmp_path: Path, memory_url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a URL"):
        gear_data.push(memory_url, NAME)
    with pytest.raises(InvalidArgumentError, match="not a URL"):
        gear_data.pull(NAME, memory_url)
    with gear_data.Writer(tmp_path / "live") as writer:
        writer.append(observations=np.zeros(2, np.float32), actions=0.0, rewards=1.0)
        writer.end_episode(terminated=True)
        writer.seal()
        writer.append(observations=np.zeros(2, np.float32), actions=0.0, rewards=1.0)
        writer.end_episode(terminated=True)
    with pytest.raises(InvalidArgumentError, match="grows"):
        gear_data.push(tmp_path / "live", NAME)


def test_cameras(hub: Hub, client: Client, tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.support.cameras.robots import write_robot

    write_robot(tmp_path / "robot", make_rollouts(3, seed=0))
    gear_data.convert(tmp_path / "robot", tmp_path / "kept", progress=False, jobs=1)
    client.run("push", tmp_path / "kept", NAME)
    client.run("pull", NAME, tmp_path / "out")
    assert folder_contents(tmp_path / "out") == _data_files(tmp_path / "kept")
    gear_data.convert(tmp_path / "robot", tmp_path / "linked", videos="link", progress=False, jobs=1)
    with pytest.raises(InvalidArgumentError, match="outside its folder"):
        gear_data.push(tmp_path / "linked", NAME)


def test_card(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gear_data.cli import main

    card = dataset / "README.md"
    text = card.read_text()
    card.unlink()
    assert main(["card", str(dataset)]) == 0
    assert capsys.readouterr().out.strip() == str(card) and card.read_text() == text
    assert main(["card", str(dataset)]) == 0
    card.write_text("edited")
    assert main(["card", str(dataset)]) == 1 and card.read_text() == "edited"
    assert main(["card", str(dataset), "--overwrite", "--json"]) == 0 and card.read_text() == text
