"""A rank of a run on several nodes is killed while the run takes a new generation.

A case starts three ranks on one to three nodes, which share the shards of a growing dataset. They take a generation,
and note the calls and returns that they pass. While they take the next one, one of them is killed at such a place. The
other ranks all take the generation or all stay, and every error is a `GearError`. A run of two ranks then continues
from the state of a rank that is left. Every batch equals, bit for bit, that of one process that reads the folder.

If the killed rank holds torch.distributed's store, the others cannot hear of a decision: some may have taken it.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import gear_data
from tests.chaos.result import ChaosResult, Limit
from tests.support.cluster.growing import killed_rank
from tests.support.cluster.growing.killed_rank import FIRST, digest
from tests.support.cluster.growing.refresh_rank import loader
from tests.support.cluster.runs import Rank, free_port, runs
from tests.support.feed.growing import GrowingDataset

#: Who holds torch.distributed's store, and whether torch.distributed is initialized.
KINDS = {
    "store of torchrun": (True, True),
    "store of torchrun, no group": (True, False),
    "store of rank 0": (False, False),
}
RANKS, RESTARTED = 3, 2
_NODES = ((0, 0, 1), (0, 1, 1), (0, 1, 2), (0, 0, 0))
#: Batches before each refresh, and the steps from which the generations hold.
SECOND, THIRD, FOURTH, LAST = FIRST + 6, FIRST + 10, FIRST + 18, 3
#: Seconds that the ranks wait for the one that is killed.
LIMIT = 1.5
#: Modules in which the ranks exchange values; half of the kills are there.
_EXCHANGES = {
    "distributed",
    "distributed_c10d",
    "generation_agreement",
    "key_value_store",
    "rank_messages",
    "refreshing",
}
Answer = dict[str, Any]


def run(seed: int, limit: Limit) -> ChaosResult:
    """Kills a rank in each case."""
    tried: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for number in limit.numbers():
        kind, rng = tuple(KINDS)[number % 3], random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory(prefix="gear-refreshes-") as scratch:
            case = _Case(rng, Path(scratch), *KINDS[kind])
            try:
                case.run()
            except Exception as error:
                failures.append(f"case {number}: {case}: {type(error).__name__}: {error}")
        tried[kind] += 1
        outcomes[case.outcome] += 1
    notes = (", ".join(f"{outcome}: {count}" for outcome, count in sorted(outcomes.items())),)
    return ChaosResult("refreshes", seed, tried.total(), dict(tried), tuple(failures), notes=notes)


class _Case:
    """One dataset, a run in which a rank is killed, and the run that continues.

    Attributes:
        outcome: what the ranks that were left did.
    """

    def __init__(self, rng: random.Random, folder: Path, shared_store: bool, initialize: bool) -> None:
        self._rng, self._folder = rng, folder
        self._shared_store, self._initialize = shared_store, initialize
        self._nodes = rng.choice(_NODES)
        self._victim = rng.randrange(RANKS)
        self._place = ""
        self.outcome = "no outcome"

    def __str__(self) -> str:
        store = "torchrun" if self._shared_store else "rank 0"
        return f"nodes {self._nodes}, store of {store}, rank {self._victim} killed at {self._place!r}"

    def run(self) -> None:
        growing = GrowingDataset(self._folder / "data", first=0)
        growing.grow(4)
        single = loader(growing.open(), rank=0, world_size=1, prefetch=0)
        batches = iter(single)
        with self._ranks(growing, self._nodes, None) as ranks:
            self._compare([_line(rank) for rank in ranks], islice(batches, FIRST))
            growing.grow(3)
            taken = _ask(ranks, {"from_step": SECOND})
            _check(all("error" not in each for each in taken), f"a refresh without a kill: {_errors(taken)}")
            single.refresh(SECOND)
            self._compare(_ask(ranks, {"batches": SECOND - FIRST}), islice(batches, SECOND - FIRST))
            growing.grow(3, max_steps=110)
            places = taken[self._victim]["places"]
            exchanges = [each for each in places if each.split()[1].split(".")[0] in _EXCHANGES]
            self._place = self._rng.choice(self._rng.choice((places, exchanges)))
            state = self._kill(ranks, single)
        with self._ranks(growing, range(RESTARTED), state) as ranks:
            # The process that reads the folder continues from the same state.
            single = loader(growing.open(), rank=0, world_size=1, prefetch=0)
            single.load_state_dict(state)
            batches = iter(single)
            self._compare([_line(rank) for rank in ranks], islice(batches, FIRST))
            growing.grow(3)
            taken = _ask(ranks, {"from_step": FOURTH})
            _check(all("error" not in each for each in taken), f"a refresh after the restart: {_errors(taken)}")
            single.refresh(FOURTH)
            count = FOURTH - state["step"] - FIRST + LAST
            self._compare(_ask(ranks, {"batches": count}), islice(batches, count))

    def _kill(self, ranks: list[Rank], single: gear_data.SequenceLoader) -> Any:
        """Kills a rank in a refresh, and returns the state of another."""
        before, after = single.dataset.generation, single.dataset.generation + 1
        for number, rank in enumerate(ranks):
            place = {"place": self._place} if number == self._victim else {}
            rank.begin(json.dumps({"from_step": THIRD, "limit": LIMIT, **place}))
        left = [_line(rank) for number, rank in enumerate(ranks) if number != self._victim]
        _check(ranks[self._victim].process.wait(60) == -9, "the rank was not killed")
        found = {each["generation"] for each in left}
        for each in left:
            _check(each.get("typed", True), f"an error without type: {_errors([each])}")
            expected = before if "error" in each else after
            _check(each["generation"] == expected, f"generation {each['generation']}, not {expected}: {_errors(left)}")
        self.outcome = "all took it" if found == {after} else "all stayed" if found == {before} else "some took it"
        may_differ = not self._shared_store and self._victim == 0
        _check(len(found) == 1 or may_differ, f"generations {sorted(found)}: {_errors(left)}")
        return left[0]["state"]

    def _compare(self, answers: list[Answer], expected: Iterator[Any]) -> None:
        """Compares the rows of all ranks with the batches of one process."""
        for step, batch in enumerate(expected):
            rows = len(batch["start"]) // len(answers)
            for rank, each in enumerate(answers):
                _check("hashes" in each, f"rank {rank}: {each}")
                wanted = digest(batch, slice(rank * rows, (rank + 1) * rows))
                _check(each["hashes"][step] == wanted, f"rank {rank} has another batch, {step} after the state")

    @contextmanager
    def _ranks(self, growing: GrowingDataset, nodes: Any, state: Any) -> Iterator[list[Rank]]:
        from torch.distributed import TCPStore

        options = json.dumps({"initialize": self._initialize, "state": state})
        port = free_port()
        variables: dict[str, object] = {}
        # As the agent of torchrun, which outlives its ranks.
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if self._shared_store else None
        if store is not None:
            variables |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
        with runs() as begin:
            places = [(growing.path, node) for node in nodes]
            yield begin(places, options, program=Path(killed_rank.__file__), port=port, **variables)
        del store


def _line(rank: Rank) -> Answer:
    line = rank.line()
    _check(bool(line), "a rank ended")
    found: Answer = json.loads(line)
    return found


def _ask(ranks: list[Rank], asked: Answer) -> list[Answer]:
    for rank in ranks:
        rank.begin(json.dumps(asked))
    return [_line(rank) for rank in ranks]


def _errors(answers: list[Answer]) -> list[str]:
    return [each.get("error", "no error") for each in answers]


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)
