"""Interrupts at random moments while batches are read.

None is lost, and no process hangs.

Each case interrupts one kind of loader: a script that catches KeyboardInterrupt must catch each interrupt, and a plain
script must end by SIGINT with a traceback. The moments depend on the machine, so a case may not fail again.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.result import ChaosResult, Limit
from tests.chaos.stops.scripts import Scripts
from tests.support.chaos import interrupted_script
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed.data import convert_episodes, locomotion

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
            arguments = [str(folder), url(node)]
            with Scripts(interrupted_script, arguments, Path(scratch, "errors"), PATIENCE) as scripts:
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


def start(scripts: Scripts, name: str, rng: random.Random, *, catches: bool) -> None:
    """Starts a script. Returns when it reads batches."""
    loader, arguments = LOADERS[name]
    scripts.fork(loader=loader, arguments=arguments, seed=rng.randrange(1 << 30), catches=catches)
    scripts.expect("go")


def interrupt(scripts: Scripts, rng: random.Random) -> None:
    time.sleep(rng.random() * MOMENTS)
    scripts.signal(signal.SIGINT)


def interrupt_and_catch(scripts: Scripts, name: str, rng: random.Random) -> list[str]:
    """Interrupts a script that catches interrupts; returns the failures."""
    failures = []
    start(scripts, name, rng, catches=True)
    for _ in range(CATCHES):
        interrupt(scripts, rng)
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
    start(scripts, name, rng, catches=False)
    interrupt(scripts, rng)
    line = scripts.said()
    if line is None:
        stacks = scripts.stacks()
        scripts.signal(signal.SIGINT)
        if scripts.said() is None:
            scripts.kill()
            return [f"hangs twice: {stacks}"]
        return [f"hangs: {stacks}"]
    errors = scripts.errors()
    if line != f"ended {-signal.SIGINT}" or "\nKeyboardInterrupt\n" not in errors or "Exception ignored" in errors:
        return [f"{line}: {errors[-800:]!r}"]
    return []
