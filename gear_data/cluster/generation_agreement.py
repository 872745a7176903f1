"""Agreement of a run's ranks on the next generation of their dataset.

The ranks exchange messages through a `KeyValueStore`:

    round       published by     key         value
    1 arrive    every rank       arrived/R   the rank's present generation
    2 choose    rank 0           generation  the generation to take
    3 prepare   every rank       ready/R     null: it has opened the generation; or its error
    4 decide    the first rank   decision    null: all ranks take the generation; or an error

Rank 0 decides once all ranks are ready. A rank that has waited too long decides against the generation. The first
decision counts, so either all ranks take the generation or none.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gear_data.cluster.key_value_store import TIMEOUT_VARIABLE, KeyValueStore, join_timeout
from gear_data.cluster.rank_messages import Failure, RankMessages, failure_in
from gear_data.cluster.ranks import Ranks, find_ranks
from gear_data.errors import ClusterError, GenerationGoneError
from gear_data.storage.dataset_files import DatasetFiles

T = TypeVar("T")

#: Number of agreements of each run in this process. Every rank makes the same calls in the same order.
_counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
#: Seconds between two looks at the store.
_FIRST_PAUSE, _LAST_PAUSE, _PAUSE_GROWTH = 0.001, 0.1, 1.3
#: Seconds for which a node waits for a generation that rank 0 has. NFS shows new files within a minute.
VISIBLE_SECONDS = 90.0


def take_generation(run: str, present: int, newest: Callable[[], int], prepare: Callable[[int], T]) -> T | None:
    """Makes all ranks take the generation that rank 0 finds. Every rank must call it.

    Args:
        run: name of the run.
        present: the generation that this rank has.
        newest: returns the newest generation; called on rank 0.
        prepare: opens a generation.

    Returns:
        What `prepare` returned; None if there is no newer generation.

    Raises:
        ClusterError: a rank does not come in time, or the ranks have different generations.
        GearError: the error of a rank. After an error, no rank takes the generation.
    """
    agreement = _Agreement(find_ranks(), run)
    messages, rank = agreement.messages, agreement.ranks.rank
    arrived, ready = agreement.keys("arrived"), agreement.keys("ready")
    messages.publish(arrived[rank], lambda: present)
    if rank == 0:
        agreement.wait(arrived, arrived)
        agreement.forget_last()
        messages.publish("generation", lambda: _chosen(messages, arrived, newest))
    else:
        agreement.wait(["generation"], arrived)
    generation = messages.read("generation", 0, int)
    if generation <= present:
        return None
    prepared: T | None = messages.publish_with_result(ready[rank], lambda: (None, prepare(generation)))
    if rank == 0:
        agreement.wait(ready, ready)
        agreement.decide(agreement.failure(ready))
    else:
        agreement.wait([_DECISION], ready)
        agreement.decide(None)  # rank 0 has decided: raises the error if there is one
    return prepared


def await_generation(files: DatasetFiles, generation: int) -> DatasetFiles:
    """Returns the files of a generation that rank 0 found.

    A shared file system may show it to this machine later than to rank 0's.

    Raises:
        GenerationGoneError: it is no longer on disk, or not here within `VISIBLE_SECONDS`.
    """
    deadline = time.monotonic() + VISIBLE_SECONDS
    while True:
        other = files.at(generation)
        try:
            other.manifest()
            return other
        except GenerationGoneError as error:
            newest = files.at().manifest().generation
            if newest >= generation:
                raise
            if time.monotonic() > deadline:
                raise GenerationGoneError(
                    f"generation {generation}, which rank 0 has, is not here after {VISIBLE_SECONDS:g} s: the newest "
                    f"one is {newest}",
                    file=str(files.location),
                    hint="open the same dataset on all nodes",
                ) from error
            time.sleep(_LAST_PAUSE)


_DECISION = "decision"


class _Agreement:
    """One agreement, as a rank sees it.

    Attributes:
        ranks: this process among the ranks.
        messages: values of the ranks.
    """

    def __init__(self, ranks: Ranks, run: str) -> None:
        self.ranks = ranks
        self._number, self._run, self._limit = next(_counts[run]), run, join_timeout()
        self._store = self._store_of(self._number)
        self.messages = RankMessages(self._store, f"rank {ranks.rank}", "refreshing the dataset")

    def _store_of(self, number: int) -> KeyValueStore:
        return KeyValueStore(self.ranks.store, f"gear_data/{self._run}/generation-{number}/", self._limit)

    def keys(self, name: str) -> list[str]:
        """Returns the key of each rank."""
        return [f"{name}/{rank}" for rank in range(self.ranks.world_size)]

    def forget_last(self) -> None:
        """Removes the values of the agreement before this one, which all ranks have left."""
        if self._number:
            keys = [*self.keys("arrived"), *self.keys("ready"), "generation", _DECISION]
            self._store_of(self._number - 1).remove(keys)

    def wait(self, keys: Sequence[str], of_ranks: Sequence[str]) -> None:
        """Waits for values.

        Args:
            keys: their keys.
            of_ranks: a key of each rank: the ranks without a value are late.

        Raises:
            ClusterError: they are not there in time. This rank decides against the generation then.
            GearError: another rank has decided against the generation.
        """
        deadline, pause = time.monotonic() + self._limit, _FIRST_PAUSE
        while not self._store.has(keys):
            if self._store.has([_DECISION]):
                self.decide(None)  # raises: nobody decides for it before all are ready
            if time.monotonic() > deadline:
                self.decide(self.messages.as_failure(self._late(of_ranks)))
            time.sleep(pause)
            pause = min(_PAUSE_GROWTH * pause, _LAST_PAUSE)

    def _late(self, of_ranks: Sequence[str]) -> ClusterError:
        late = [rank for rank, key in enumerate(of_ranks) if not self._store.has([key])] or [0]
        names = f"rank {late[0]}" if len(late) == 1 else "ranks " + ", ".join(map(str, late[:20]))
        return ClusterError(
            f"timed out after {self._limit:g} s waiting for {names}: no rank takes the new generation",
            hint=f"call refresh on all ranks, and see the log of {names}; ${TIMEOUT_VARIABLE} sets the timeout in "
            "seconds",
        )

    def failure(self, keys: Sequence[str]) -> Failure | None:
        """Returns the first error among the values of the ranks."""
        failures = (failure_in(self._store.take(key, f"rank {rank}")) for rank, key in enumerate(keys))
        return next((each for each in failures if each is not None), None)

    def decide(self, value: Failure | None) -> None:
        """Decides, if no rank has decided. None: all ranks take the generation.

        Raises:
            GearError: the decision is against the generation.
        """
        self.messages.raise_failure(self._store.propose(_DECISION, value))


def _chosen(messages: RankMessages, arrived: Sequence[str], newest: Callable[[], int]) -> int:
    present = [messages.read(key, rank, int) for rank, key in enumerate(arrived)]
    if len(set(present)) > 1:
        raise ClusterError(
            f"the ranks have the generations {', '.join(map(str, sorted(set(present))))}",
            hint="refresh the same dataset on all ranks, as often on each",
        )
    return newest()
