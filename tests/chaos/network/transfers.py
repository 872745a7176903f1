"""Pushes to the hub, pulls, and readers of a dataset there are killed, and the hub fails under them.

The hub is a server of this process. At one of the requests the client is killed, before the hub does what it asks or
afterwards. Or the hub refuses some requests, loses their answers, or falls silent.

A client without a kill succeeds or ends with a typed error. The hub then has the old dataset or the new one, whole, and
so has the destination of a pull. The same command, run again, leaves what an undisturbed run leaves, byte for byte.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from queue import SimpleQueue

import gear_data
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.case_folder import last_lines
from tests.support.rollouts import make_rollouts
from tests.support.running.hub_server import Hub, running_hub
from tests.support.running.warm_python import python

_KILLED, _REFUSED, _LOST, _SILENT = KINDS = ("killed", "refused", "lost answers", "silent")
OPERATIONS = ("push", "push over another", "pull", "pull --overwrite", "read")
_NAME = "me/hops"
#: Seconds of patience of a client whose hub falls silent, and seconds after which a client counts as hanging.
_SILENCE, _HANGS = 3, 300
_Files = dict[str, bytes]
#: Reads all values of a dataset, and writes their digest.
_READ = """
import hashlib, sys, gear_data
from gear_data.errors import GearError
try:
    dataset = gear_data.open(sys.argv[1])
    values = [episode[name].tobytes() for episode in dataset for name in ("observations", "rewards")]
    open(sys.argv[2], "w").write(hashlib.sha256(b"".join(values)).hexdigest())
except GearError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def run(seed: int, limit: Limit) -> ChaosResult:
    """Disturbs each operation in turn, in one way after the other."""
    tried: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-transfers-") as scratch, running_hub() as hub:
        case = _Case(hub, Path(scratch))
        for number in limit.numbers():
            operation = OPERATIONS[number % len(OPERATIONS)]
            kind = KINDS[(number + number // len(OPERATIONS)) % len(KINDS)]
            failure = case.run(operation, kind, random.Random(f"{seed} {number}"))
            ends[case.end] += 1
            tried[kind] += 1
            failures += [f"case {number}: {operation}, {kind} {failure}"] if failure else []
    notes = (", ".join(f"{end} {times}" for end, times in sorted(ends.items())),)
    return ChaosResult("transfers", seed, tried.total(), dict(tried), tuple(failures), notes=notes)


class _Case:
    """Two datasets, a folder of the case, and what undisturbed runs left.

    Attributes:
        end: how the last disturbed client ended.
    """

    def __init__(self, hub: Hub, scratch: Path) -> None:
        self._hub, self._folder = hub, scratch / "case"
        self._new, self._old = scratch / "new", scratch / "old"
        for folder, seed in ((self._new, 3), (self._old, 4)):
            episodes = [rollout.columns for rollout in make_rollouts(12, seed=seed)]
            gear_data.convert(episodes, folder, shard_bytes=1024, progress=False)
        #: Operation -> what an undisturbed run leaves, and its number of requests.
        self._whole: dict[str, tuple[_Files, int]] = {}
        self.end = "no end"

    def run(self, operation: str, kind: str, rng: random.Random) -> str | None:
        """Disturbs one operation; returns the failure."""
        if operation not in self._whole:
            self._prepare(operation)
            failure = _wrong_end(self._start(operation), may_fail=False)
            if failure:
                return f"an undisturbed run: {failure}"
            self._whole[operation] = self._left(operation), len(self._hub.requests)
        after, requests = self._whole[operation]
        fault = _Fault(kind, rng.randrange(requests), rng.choice((1, 1, 3, 12)), rng.choice((429, 500, 503)), rng)
        self._prepare(operation)
        before = self._left(operation)
        self._hub.on_request, self._hub.on_answer = fault.on_request, fault.on_answer
        client = self._start(operation, **fault.variables)
        fault.client.put(client)
        failure = _wrong_end(client, may_fail=True)
        self.end = {0: "succeeded", -9: "killed"}.get(client.returncode, "typed errors")
        fault.over.set()
        self._hub.on_request = lambda line: None
        self._hub.on_answer = lambda line, size: None
        found = self._left(operation)
        if failure is None and found not in (before, after):
            failure = f"half done: {_difference(after, found)}"
        if failure is None and not (operation == "pull" and found == after):
            failure = _wrong_end(self._start(operation), may_fail=False)
            failure = f"the next run: {failure}" if failure else None
        failure = failure or _difference(after, self._left(operation))
        if failure is None and (rest := [*self._folder.glob(".*")]):
            failure = f"{rest[0].name} is left"
        return f"{fault} of {requests}: {failure}" if failure else None

    def _prepare(self, operation: str) -> None:
        """Makes the hub and the folder as they are before an operation."""
        hub = self._hub
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("tmp", "read"):
            (self._folder / name).mkdir(parents=True)
        hub.repositories.clear()
        hub.objects.clear()
        hub.requests.clear()
        there = {"push": None, "push over another": self._old}.get(operation, self._new)
        if there is not None:
            hub.add(_NAME, {"LICENSE": b"mine", **_files(there)})
        if operation == "pull --overwrite":
            shutil.copytree(self._old, self._folder / "out")

    def _start(self, operation: str, **variables: str) -> subprocess.Popen[str]:
        places = {"HF_HOME": "home", "GEAR_DATA_CACHE": "cache", "TMPDIR": "tmp"}
        variables = {**variables, **{name: str(self._folder / place) for name, place in places.items()}}
        command = ["-m", "gear_data.cli", "pull", _NAME, str(self._folder / "out"), "--json"]
        if operation == "read":
            command = ["-c", _READ, f"hf://datasets/{_NAME}", str(self._folder / "read/digest")]
        elif operation.startswith("push"):
            command = ["-m", "gear_data.cli", "push", str(self._new), _NAME, "--json"]
        command += ["--overwrite"] * (operation == "pull --overwrite")
        return subprocess.Popen(
            [python(), *command], env={**os.environ, **self._hub.environment(), **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _left(self, operation: str) -> _Files:
        """Returns the files of the repository, of the destination, or the digest that a reader wrote."""
        if operation.startswith("push"):
            found = dict(self._hub.repositories[_NAME].files()) if _NAME in self._hub.repositories else {}
            found.pop(".gitattributes", None)
            return found
        return _files(self._folder / "out") | _files(self._folder / "read")


class _Fault:
    """A fault at some requests of a client.

    Attributes:
        client: gets the client, once it has started.
        over: set when the client has ended.
        variables: environment variables of the client.
    """

    def __init__(self, kind: str, first: int, length: int, status: int, rng: random.Random) -> None:
        self._kind, self._status = kind, status
        self._requests = range(first, first + (1 if kind == _KILLED else length))
        self._is_done = kind == _LOST or (kind == _KILLED and rng.random() < 0.5)
        self._numbers, self._answers = count(), count()
        self.client: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self.over = threading.Event()
        self.variables = {"GEAR_DATA_REQUEST_SECONDS": str(_SILENCE)} if kind == _SILENT else {}

    def __str__(self) -> str:
        last = self._requests[-1]
        return (
            f"{'after' if self._is_done else 'before'} requests {self._requests[0]} to {last} (status {self._status})"
        )

    def on_request(self, line: str) -> int | None:
        """Disturbs a request before the hub does what it asks."""
        if self._is_done or next(self._numbers) not in self._requests:
            return None
        if self._kind == _REFUSED:
            return self._status
        if self._kind == _KILLED:
            self._kill()
        self.over.wait(_HANGS)
        raise ConnectionError

    def on_answer(self, line: str, size: int) -> None:
        """Disturbs a request after the hub has done what it asks."""
        if self._is_done and next(self._answers) in self._requests:
            if self._kind == _KILLED:
                self._kill()
            raise ConnectionError

    def _kill(self) -> None:
        client = self.client.get()
        client.kill()
        self.client.put(client)


def _wrong_end(client: subprocess.Popen[str], *, may_fail: bool) -> str | None:
    """Waits for a client; returns what is wrong with its end."""
    try:
        output, _ = client.communicate(timeout=_HANGS)
    except subprocess.TimeoutExpired:
        client.kill()
        return f"hangs: {last_lines(client.communicate()[0])}"
    if client.returncode == 0 or (may_fail and client.returncode == -9):
        return None
    if may_fail and client.returncode == 1 and "Traceback" not in output:
        return None
    return f"exit status {client.returncode}: {last_lines(output)}"


def _files(folder: Path) -> _Files:
    """Returns name -> contents of the files of a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _difference(expected: _Files, found: _Files) -> str | None:
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            there = "is missing" if name not in found else "is left" if name not in expected else "differs"
            return f"{name} {there}"
    return None
