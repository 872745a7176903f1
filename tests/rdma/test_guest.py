"""RDMA without RDMA hardware: soft-RoCE in QEMU guests; see `guest`.

Takes minutes, mostly for emulated imports.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras, video_file
from tests.support.feed import data as feed_data
from tests.support.rdma import guest, remote_batches

#: Seconds: ten times what an idle machine needs. Above the limits below, whose errors have the guest's output.
pytestmark = pytest.mark.timeout(2600)

HERE = Path(guest.__file__).parent
#: Seconds that a node may take to answer the other guest.
TIMEOUT = 30
REQUIRED = "GEAR_DATA_REQUIRE_VERBS"
#: Kernels are compiled here for any processor, and loaded in the guest, whose processor is another one.
_NUMBA = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
#: Runs a program. Numba would import these packages, which no kernel needs.
_RUN = """import runpy, sys
sys.modules.update(dict.fromkeys(("cffi", "coverage", "scipy", "yaml")))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")"""


@pytest.fixture(scope="module")
def guests_available():
    reason = guest.obstacle()
    if reason is not None and os.environ.get(REQUIRED):
        pytest.fail(f"${REQUIRED} is set, and no guest can start: {reason}")
    if reason is not None:
        pytest.skip(f"no guest: {reason}")


@pytest.fixture(scope="module")
def disk():
    """A folder that guests see: other folders of tests may be in memory, in `/dev/shm`."""
    with tempfile.TemporaryDirectory(prefix="gear-data-guests-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def prepared(guests_available, disk):
    """A folder with the dataset, its expected batches, and compiled kernels."""
    folder = disk / "verbs"
    folder.mkdir()
    lengths = np.random.default_rng(0).integers(1, 200, 300).tolist()
    dataset = with_text(feed_data.locomotion(lengths, seed=5, observations=11), folder)
    assert len(dataset.manifest.shards) > 3
    store = dataset.store
    shard, start = store.episode_starts
    np.savez(
        folder / "expected.npz",
        shard=shard,
        start=start,
        length=store.lengths,
        **remote_batches.batches(store.reader(), dataset.schema, store.lengths),
    )
    warm = [sys.executable, str(HERE / "warm.py"), str(folder / "d"), str(folder / "cache")]
    subprocess.run(warm, check=True, env={**os.environ, **variables(folder)}, timeout=300)
    return folder


def with_text(episodes, folder):
    """Converts these episodes, with an additional column of texts."""
    feed_data.write_episodes(episodes, folder / "d.parquet")
    table, rng = pq.read_table(folder / "d.parquet"), np.random.default_rng(1)
    texts = [
        [" größer"[: 1 + step % 7] * rng.integers(10) for step in range(len(each["rewards"]))] for each in episodes
    ]
    pq.write_table(table.append_column("observations.text", pa.array(texts)), folder / "d.parquet")
    gear_data.convert(folder / "d.parquet", folder / "d", progress=False, format="episode-rows", shard_bytes=1 << 19)
    attach_videos(folder / "d", [len(each["rewards"]) for each in episodes])
    return gear_data.open(folder / "d")


def attach_videos(folder, lengths):
    """Gives a dataset a camera with three files of random bytes."""
    file = np.arange(len(lengths)) % 3
    first = np.array([sum(lengths[each % 3 : each : 3]) for each in range(len(lengths))])
    videos = [video_file(f"videos/{number}.mp4", sum(lengths[number::3])) for number in range(3)]
    for video in videos:
        (folder / video.file).parent.mkdir(exist_ok=True)
        (folder / video.file).write_bytes(np.random.default_rng(video.size).bytes(video.size))
    attach_cameras(folder, videos, {"observations.images.front": VideoSegments(file, first)})


def variables(folder: Path) -> dict[str, str]:
    paths = [str(Path(gear_data.__file__).parent.parent), sysconfig.get_path("purelib")]
    return {
        **_NUMBA,
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "PYTHONPATH": os.pathsep.join(paths),
        "GEAR_DATA_CACHE": "/tmp/cache",
        "GEAR_DATA_NODE_TIMEOUT": "20",
        "POLARS_SKIP_CPU_CHECK": "1",
    }


def check_names(file: str) -> list[str]:
    tree = ast.parse((HERE / file).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name.removeprefix("check_") for name in names if name.startswith("check_")]


@pytest.fixture(scope="module")
def protection(disk):
    """A folder with a certificate of the first guest, its key, and a token."""
    folder = disk / "tls"
    folder.mkdir()
    key, pem, address = folder / "node.key", folder / "node.pem", guest.address(1)
    subject = ["-subj", "/CN=node", "-addext", f"subjectAltName=IP:{address}", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, "-keyout", key, "-out", pem, *subject], check=True, capture_output=True)
    (folder / "token").write_text("the-token-of-the-RDMA-tests")
    return folder


@pytest.fixture(scope="module")
def machines(prepared, protection, tmp_path_factory):
    """Two guests and their output folders.

    The first runs the checks of `test_one_machine` and then serves the dataset, which the second reads.
    """
    place, token = f"{guest.address(1)}:7000", protection / "token"
    reading = {"GEAR_DATA_TLS_CA": str(protection / "node.pem"), "GEAR_DATA_TOKEN_FILE": str(token)}
    reading["GEAR_DATA_NODE_TIMEOUT"] = str(TIMEOUT)
    check = ["guest_checks.py", prepared / "d", prepared / "expected.npz", protection, place]
    read = ["guest_peer.py", prepared / "d", place]
    ends, started = socket.socketpair(), []
    try:
        for number, ((program, *words), wire) in enumerate(zip((check, read), ends, strict=True), 1):
            out = tmp_path_factory.mktemp("out")
            # Without `site`: it imports what other packages ask for.
            command = [sys.executable, "-S", "-c", _RUN, str(HERE / program), *map(str, words)]
            options = {**variables(prepared), **(reading if number == 2 else {})}
            started.append((guest.Guest(out, command, options, number, wire), out))
            wire.close()
        yield started
    finally:
        for machine, _ in started:
            machine.kill()


@pytest.fixture(scope="module")
def one_guest(machines):
    machine, out = machines[0]
    machine.wait_for("all checks ended", 2400)
    print(machine.log)
    rows = [json.loads(line) for line in (out / "results").read_text().splitlines()]
    return {row["check"]: row["problem"] for row in rows}


@pytest.mark.parametrize("check", [*check_names("guest_checks.py"), *check_names("guest_network.py")])
def test_one_machine(one_guest, check):
    assert one_guest.get(check, "the guest did not run this check") is None, one_guest.get(check)


@pytest.mark.usefixtures("one_guest")
def test_two_machines(machines):
    """The second guest reads the first, and notices when the first is gone."""
    (node, _), (client, _) = machines
    node.wait_for("also by RDMA", 600)
    client.wait_for("equal", 600)
    node.kill()
    assert client.wait(3 * TIMEOUT) == 0, client.state()
    print(client.log)
    assert "without the token" in client.log and "does not accept the token" in client.log
    (line,) = [line for line in client.log.splitlines() if line.startswith("gone after")]
    # Time for the READs, and for one attempt at a new queue pair, in case the node only restarted.
    assert float(line.split()[2]) < 1.5 * TIMEOUT and f"gear://{guest.address(1)}" in line, line
