"""Sources in a bucket and on the hub."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import SourceNotFoundError
from gear_data.ingest.location import locate_files
from gear_data.ingest.table_files import CSV, table_kinds
from gear_data.storage.remote.range_reader import filesystem_of
from tests.ingest.cached.test_opening import check
from tests.support.rollouts import Rollout, episode_numbers, step_table, write_d4rl
from tests.support.running.hub_server import Hub, running_hub
from tests.support.running.warm_python import python
from tests.support.s3.server import S3Server, s3_server

pytestmark = pytest.mark.processes


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def test_files_in_a_bucket_are_known_by_their_etags(
    server: S3Server, source: Path, rollouts: list[Rollout], runs: list[str], tmp_path: Path
) -> None:
    import s3fs

    # Another client, as another machine has it: the listings that this process keeps do not hear of its writes.
    other = s3fs.S3FileSystem(skip_instance_cache=True)
    other.put_file(str(source), "bucket/hops/a.hdf5")
    for url in ("s3://bucket/hops/a.hdf5", "s3://bucket/hops"):
        first = gear_data.open(url)
        check(first, rollouts)
        server.requests.clear()
        assert gear_data.open(url).path == first.path
        assert not [path for method, path in server.requests if method == "GET" and path.endswith("a.hdf5")]
    assert len(runs) == 2
    other.put_file(str(write_d4rl(tmp_path / "b.hdf5", rollouts[:5])), "bucket/hops/a.hdf5")
    check(gear_data.open("s3://bucket/hops"), rollouts[:5])
    with pytest.raises(gear_data.errors.DatasetNotFoundError, match="no such dataset"):
        gear_data.open("s3://bucket/nothing")


def test_objects_that_stand_for_folders_are_no_files(server: S3Server) -> None:
    """Consoles of object stores make them. Text files are the data of a folder that holds nothing else."""
    filesystem, place = filesystem_of("s3://bucket/console")
    for key in ("console/", "console/part/", "empty/"):
        filesystem.call_s3("put_object", Bucket="bucket", Key=key, Body=b"")
    filesystem.pipe_file(f"{place}/part/steps.csv", b"episode,rewards\n0,1.0\n")
    files = locate_files("s3://bucket/console").files
    assert [file.name for file in files] == ["part/steps.csv"]
    assert table_kinds(files) == {CSV: files}
    with pytest.raises(SourceNotFoundError, match="no such file or folder"):
        locate_files("s3://bucket/empty")


def parquet(rollouts: list[Rollout]) -> bytes:
    table = step_table([each.columns for each in rollouts], episode_index=episode_numbers(rollouts))
    file = io.BytesIO()
    pq.write_table(pa.table(table), file)
    return file.getvalue()


MIXED = """
from pathlib import Path
import gear_data

Path("mix.yaml").write_text("datasets: [{path: me/hops}]")
mixture = gear_data.Mixture.from_yaml("mix.yaml")
mixture.to_yaml("again.yaml")
assert gear_data.Mixture.from_yaml("again.yaml").fingerprint == mixture.fingerprint
Path("other/me").mkdir(parents=True)
for place in ("other/mix.yaml", "memory://mixtures/mix.yaml"):
    try:
        mixture.to_yaml(place)
    except gear_data.errors.InvalidArgumentError as error:
        print(error)
"""


def test_a_mixture_in_a_file_has_a_dataset_of_the_hub(
    hub: Hub, rollouts: list[Rollout], tmp_path: Path, cache: Path
) -> None:
    hub.add("me/hops", {"steps.parquet": parquet(rollouts)})
    known = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home")}
    command = [python(), "-c", MIXED]
    done = subprocess.run(command, env=known, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.stdout.count("a file in this folder would read a path beside it") == 2, done.stderr


def test_a_dataset_of_the_hub_is_known_by_its_commit(
    hub: Hub, rollouts: list[Rollout], tmp_path: Path, cache: Path
) -> None:
    """The library reads HF_ENDPOINT when it is imported, so each command is a process."""

    def inspect(name: str = "me/hops", **environment: str) -> subprocess.CompletedProcess[str]:
        hub.requests.clear()
        known = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home"), **environment}
        command = [python(), "-m", "gear_data.cli", "inspect", name, "--json"]
        return subprocess.run(command, env=known, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    def requests() -> list[str]:
        return [line for line in hub.requests if "me/" in line]

    hub.add("me/hops", {"steps.parquet": parquet(rollouts)})
    first = inspect()
    assert f'"episodes": {len(rollouts)}' in first.stdout, first.stderr
    assert any(line.endswith(".parquet") for line in requests())
    again = inspect()
    assert again.stdout == first.stdout, again.stderr
    assert requests() == ["GET /api/datasets/me/hops"]
    statuses = [503, 429]
    hub.on_request = lambda line: statuses.pop() if statuses and "me/hops" in line else None
    limited = inspect()
    assert limited.stdout == first.stdout, limited.stderr
    assert "me/hops: the server limits how often it is asked (429); waiting" in limited.stderr
    assert requests() == ["GET /api/datasets/me/hops"] * 3
    offline = inspect(HF_HUB_OFFLINE="1")
    assert offline.stdout == first.stdout
    assert "cannot reach the hub; using the conversion of" in offline.stderr
    assert requests() == []
    hub.add("me/hops", {"steps.parquet": parquet(rollouts[:6]), "more.md": b"x"})
    changed = inspect()
    assert '"episodes": 6' in changed.stdout, changed.stderr
    assert "me/hops: changed since it was converted" in changed.stderr
    absent = inspect("me/absent")
    assert absent.returncode == 1
    assert "me/absent: no such file or folder, and it cannot be read as a hub dataset" in absent.stderr
    (tmp_path / "me").mkdir()
    path = inspect("me/absent")
    assert "me/absent: no such file or folder\n  there is no absent in " in path.stderr
    assert requests() == []
