"""Interrupts at random moments while batches are read.

None is lost, and no process hangs.

Each case interrupts one kind of loader: a script that catches KeyboardInterrupt must catch each interrupt, and a plain
script must end by SIGINT with a traceback. The moments depend on the machine, so a case may not fail again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos import interrupted_script
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed.data import convert_episodes, locomotion
from tests.support.running.warm_python import INTERPRETER

#: Interrupts that the script of a case catches.
CATCHES = 20
#: Most seconds from the beginning of the batches to the interrupt.
MOMENTS = 0.02
#: Seconds after which a script that does not answer hangs. On an idle machine, scripts answer within a second.
PATIENCE = 20.0

#: Name of a loader -> its function in `interrupted_script`, and the arguments.
LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mmap, prefetch=4": ("local", {"residency": "mmap", "prefetch": 4}),
    "host, prefetch=0": ("local", {"residency": "host", "prefetch": 0}),
    "node, prefetch=0": ("remote", {"prefetch": 0}),
    "node, prefetch=4": ("remote", {"prefetch": 4}),
    "DataLoader": ("workers", {"prefetch": 1}),
    # The test of this harness runs the loaders above.
    "mmap, prefetch=0": ("local", {"residency": "mmap", "prefetch": 0}),
    "mmap, prefetch=1": ("local", {"residency": "mmap", "prefetch": 1}),
    "host, prefetch=1": ("local", {"residency": "host", "prefetch": 1}),
    "host, prefetch=4": ("local", {"residency": "host", "prefetch": 4}),
    "mixture, prefetch=0": ("mixture", {"prefetch": 0}),
    "mixture, prefetch=4": ("mixture", {"prefetch": 4}),
}


def run(seed: int, limit: Limit) -> ChaosResult:
    """Interrupts scripts with each loader in turn."""
    tried: Counter[str] = Counter()
    failures: list[str] = []
    cases = 0
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as scratch:
        folder = Path(scratch, "dataset")
        convert_episodes(locomotion([50 + 7 * n for n in range(40)], seed=5), folder)
        node = NodeProcess(folder)
        try:
            node.wait()
            with Scripts(folder, url(node), Path(scratch, "errors")) as scripts:
                for number in limit.numbers():
                    cases += 1
                    name = list(LOADERS)[number % len(LOADERS)]
                    rng = random.Random(f"{seed} {number}")
                    found = interrupt_and_catch(scripts, name, rng) + interrupt_and_end(scripts, name, rng)
                    failures += [f"case {number}: {name}, {failure}" for failure in found]
                    tried["interrupts to catch"] += CATCHES
                    tried["interrupts to end"] += 1
        finally:
            node.kill()
    return ChaosResult("interrupts", seed, cases, tried, tuple(failures))


class Scripts:
    """A process that forks scripts, one at a time."""

    def __init__(self, dataset: Path, node: str, errors: Path) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [INTERPRETER, interrupted_script.__file__, str(dataset), node], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,  # not interrupted with this process
        )  # fmt: skip
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._pid = 0

    def __enter__(self) -> Scripts:
        self.expect("ready")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line.strip())

    def said(self) -> str | None:
        """Returns the next line, or None if the script hangs."""
        with suppress(Empty):
            return self._lines.get(timeout=PATIENCE)
        return None

    def expect(self, prefix: str) -> str:
        """Returns the next line, which begins with `prefix`, on a machine of any speed."""
        line = self._lines.get(timeout=20 * PATIENCE)
        if not line.startswith(prefix):
            raise RuntimeError(f"the script said {line!r} instead of {prefix!r}: {self.errors()[-2000:]}")
        return line

    def start(self, name: str, rng: random.Random, *, catches: bool) -> None:
        """Starts a script. Returns when it reads batches."""
        loader, arguments = LOADERS[name]
        description = {"loader": loader, "arguments": arguments, "seed": rng.randrange(1 << 30), "catches": catches}
        print(json.dumps({**description, "errors": str(self._errors)}), file=self._process.stdin, flush=True)
        self._pid = int(self.expect("pid ").removeprefix("pid "))
        self.expect("go")

    def interrupt(self, after: float = 0.0) -> None:
        time.sleep(after)
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        while not self._lines.get(timeout=20 * PATIENCE).startswith("ended"):
            pass

    def errors(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    def stacks(self) -> str:
        """Returns the stacks of all threads, in one line."""
        self._signal(signal.SIGUSR1)
        time.sleep(0.5)
        return " / ".join(line.strip() for line in self.errors().splitlines()[-40:])

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)


def interrupt_and_catch(scripts: Scripts, name: str, rng: random.Random) -> list[str]:
    """Interrupts a script that catches interrupts; returns the failures."""
    failures = []
    scripts.start(name, rng, catches=True)
    for _ in range(CATCHES):
        scripts.interrupt(rng.random() * MOMENTS)
        while (line := scripts.said()) != "go":
            if line is None:
                failures.append(f"hangs: {scripts.stacks()}")
                scripts.kill()
                return failures
            if line.startswith("ended"):
                return [*failures, f"{line} instead of catching: {scripts.errors()[-800:]!r}"]
            if line != "caught":
                failures.append(line)
    scripts.kill()
    return failures


def interrupt_and_end(scripts: Scripts, name: str, rng: random.Random) -> list[str]:
    """Interrupts a plain script, and once more if it hangs; returns the failures."""
    scripts.start(name, rng, catches=False)
    scripts.interrupt(rng.random() * MOMENTS)
    line = scripts.said()
    if line is None:
        stacks = scripts.stacks()
        scripts.interrupt()
        if scripts.said() is None:
            scripts.kill()
            return [f"hangs twice: {stacks}"]
        return [f"hangs: {stacks}"]
    errors = scripts.errors()
    if line != f"ended {-signal.SIGINT}" or "\nKeyboardInterrupt\n" not in errors or "Exception ignored" in errors:
        return [f"{line}: {errors[-800:]!r}"]
    return []
