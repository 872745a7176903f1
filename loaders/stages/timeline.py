"""Stages: which datasets a loader has at which step."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import msgspec

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.dataset.dataset import Dataset
from gear_data.errors import GenerationGoneError, InvalidArgumentError, StateMismatchError
from gear_data.loaders.component import Origin
from gear_data.loaders.passes.layout import NO_END
from gear_data.loaders.stages.generations import LARGER_LIMITS, open_generation
from gear_data.loaders.stages.stage import Stage, StageRecord, later_stage

#: The stages of this many steps before the next step stay open, for `windows` and `batch`.
STEPS_KEPT = 64


class Stages:
    """The stages of a loader, in the order of their steps.

    Every stage has a record. Only the stages of the coming and of the last batches are open: the others are closed, so
    that the files of their generations may go. A stage is opened again if a step of it is asked for. A closed stage
    whose episodes were evicted can never be opened: it is forgotten, if all stages before it are.

    Threads may look up stages while another thread enters one.

    Args:
        first: the stage of step 0.

    Attributes:
        newest: the last stage, which is always open.
        opened: the open stages, in order.
        passed: the next step with which the oldest open stage can be closed.
    """

    def __init__(self, first: Stage) -> None:
        self._records: list[StageRecord | None] = [None]
        self._open: list[Stage | None] = [first]
        self._starts = [first.from_step]
        self.newest, self.opened, self.passed = first, [first], NO_END
        #: The datasets that `refresh` asks for newer generations.
        self.followed: list[Dataset] = [each.dataset for each in first.config.datasets]
        self._lock = fork_safe_lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=fork_safe_lock())

    @property
    def grows(self) -> bool:
        """Whether a state needs the stages: a dataset grew, or was refreshed."""
        return len(self._open) > 1 or any(each.generation for each in self.followed)

    def at(self, step: int) -> Stage:
        """Returns the stage of a step.

        Raises:
            InvalidArgumentError: the weights of the step are no longer kept.
            GenerationGoneError: the episodes of the step's generation are gone.
        """
        stage = self.newest
        if step >= stage.from_step:
            return stage
        with self._lock:
            if step < self._starts[0]:
                raise GenerationGoneError(
                    f"the generation of step {step} is gone: the dataset no longer has all of its episodes",
                    file=", ".join(str(each.path) for each in self.followed),
                    hint=LARGER_LIMITS,
                )
            index = bisect.bisect_right(self._starts, step) - 1
            found = self._open[index]
            if found is None:
                found = self._open[index] = self._opened(index, step)
                self._note_opened()
            return found

    def enter(self, stage: Stage, followed: Sequence[Dataset]) -> None:
        """Adds a stage. No batch of its steps may be started meanwhile.

        Args:
            stage: begins at the newest stage's first step, or later.
            followed: its datasets, whose newer generations `refresh` takes.
        """
        with self._lock:
            if stage.from_step == self.newest.from_step:
                # No batch is of the newest stage.
                del self._records[-1], self._open[-1], self._starts[-1]
            for before in (self.newest, *self._open[-1:]):
                if before is not None:
                    before.end = stage.from_step
            self._records.append(None)
            self._open.append(stage)
            self._starts.append(stage.from_step)
            self.followed = list(followed)
            self.newest = stage
            self._note_opened()

    def close_passed(self, step: int) -> None:
        """Closes the stages whose steps are all long before a step."""
        with self._lock:
            for index, stage in enumerate(self._open):
                if stage is not None and stage.end + STEPS_KEPT <= step:
                    self._records[index] = stage.record()
                    self._open[index] = None
            while (first := self._records[0]) is not None and self._open[0] is None and first.is_gone(self.followed):
                del self._records[0], self._open[0], self._starts[0]
            self._note_opened()

    def _note_opened(self) -> None:
        self.opened = [each for each in self._open if each is not None]
        oldest = self.opened[0]
        self.passed = NO_END if oldest is self.newest else oldest.end + STEPS_KEPT

    def _opened(self, index: int, step: int) -> Stage:
        """Returns a stage that is closed."""
        record = self._records[index]
        if record is None:
            raise RuntimeError("a closed stage has no record")
        if record.lost:
            raise InvalidArgumentError(
                f"the weights of step {step} are no longer kept: a later generation holds from step "
                f"{self._starts[index + 1]} on",
                hint="continue the current iteration, or load a saved state",
            )
        stage = reopened(record, self.opened, self.newest, self.followed)
        stage.end = self._starts[index + 1]
        return stage

    def spec(self) -> list[dict[str, Any]]:
        """Returns the first step, the generations and the fingerprints of each stage, JSON-able."""
        records = [stage.record() if stage is not None else record for stage, record in self._pairs()]
        names = ("from_step", "generations", "fingerprints")
        return [{name: getattr(record, name) for name in names} for record in records]

    def _pairs(self) -> list[tuple[Stage | None, StageRecord | None]]:
        return list(zip(self._open, self._records, strict=True))

    def saved(self, step: int) -> list[dict[str, Any]]:
        """Returns the records of all stages, JSON-able, with the weights that the steps from `step` on have."""
        records, known = [], set[int]()
        for stage, record in self._pairs():
            if stage is not None:
                record = stage.saved_record(known) if stage.end > step else stage.record()
            records.append(msgspec.to_builtins(record))
        return records

    def load(self, records: Sequence[StageRecord], step: int) -> None:
        """Continues with the stages of a state. After an error, the stages are as before.

        Args:
            records: their records, in order; the first begins at `step` or before.
            step: the next step. Its stage and later ones are opened.

        Raises:
            StateMismatchError: the records are of another loader.
            GenerationGoneError: episodes of a generation that is needed are gone.
        """
        starts = [record.from_step for record in records]
        if not records or starts != sorted(set(starts)) or starts[0] > step:
            raise StateMismatchError(f"the stages of the loader state begin at the steps {starts}", hint=_UNCHANGED)
        count = len(self.newest.config.datasets)
        for record in records:
            lists = (record.generations, record.fingerprints, record.last_ids, record.normalize)
            optional = (each for each in (record.weights, record.episodes) if each is not None)
            if {len(each) for each in (*lists, *optional)} != {count}:
                raise StateMismatchError(
                    f"the loader state has the datasets {record.fingerprints}, and this loader has {count}",
                    hint=_UNCHANGED,
                )
        stages: list[Stage | None] = [None] * len(records)
        for index, record in enumerate(records):
            end = starts[index + 1] if index + 1 < len(records) else NO_END
            if end > step:
                opened = reopened(record, [each for each in stages if each is not None], self.newest, self.followed)
                opened.end = end
                stages[index] = opened
        newest = stages[-1]
        if newest is None:
            raise RuntimeError("the last stage has no end")
        with self._lock:
            self._records, self._open, self._starts = list(records), stages, starts
            self.newest = newest
            self._note_opened()


#: The hint for a state that is malformed.
_UNCHANGED = "load a state that a loader of the same datasets saved, unchanged"


def reopened(record: StageRecord, opened: Sequence[Stage], like: Stage, followed: Sequence[Dataset]) -> Stage:
    """Returns the stage of a record.

    Args:
        record: the record.
        opened: open stages; components of the same generation are shared with them.
        like: another stage of the loader.
        followed: the newest known generation of each dataset.

    Raises:
        StateMismatchError: the stage has other windows than when it was recorded.
        GenerationGoneError: the episodes of a generation are gone.
    """
    datasets, origins = [], []
    for number, fingerprint in enumerate(record.fingerprints):
        origin, dataset = Origin(), None
        for stage in opened:
            own = stage.config.datasets[number].dataset
            if own.fingerprint == fingerprint and stage.generations[number] == record.generations[number]:
                origin = Origin(component=stage.components[number], normalize=record.normalize[number])
                dataset = own
        if dataset is None:
            dataset = open_generation(
                followed[number], record.generations[number], fingerprint, record.last_ids[number]
            )
            weights = None if record.weights is None else record.weights[number]
            origin = Origin(normalize=record.normalize[number], weights=weights)
        datasets.append(dataset)
        origins.append(origin)
    stage = later_stage(like, datasets, origins, record.from_step, ask_rank_zero=False)
    stage.generations = record.generations
    selection = stage.source.identity()["selection"]
    if selection != record.selection:
        raise StateMismatchError(
            f"the stage from step {record.from_step} had the selection {record.selection}, and now has {selection}",
            hint="resume with the sampler and the arguments with which the state was saved",
        )
    return stage
