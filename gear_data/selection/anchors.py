"""Anchors: the steps that position windows, indexed over a set of episodes."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import Int64Array, WindowRule
from gear_data.storage.episode_block import offsets_of


class Anchors:
    """The anchor steps of k episodes, in order.

    Each window is positioned by an anchor step. If every step is an anchor, `prefix` is the array `offsets` itself, and
    takes no memory.

    Args:
        lengths: int64 [k], steps of each episode.
        offsets: int64 [k + 1], running sums of the lengths from 0; None: computed here.
        ids: int64 [k], the episodes' rows in the whole dataset, by which windows name them; None: 0 to k - 1.
        first: int64 [k], the index in the whole dataset of each episode's first step; None: offsets[:-1].
        rule: which steps are anchors.
        eligible: only steps of this mask are anchors (see `StepMask.anchors`); None: any step.
        excluded: bool [k], the episodes whose last step is no anchor; None: no episode.
        names: int64 [k], ascending, the episodes' ids, by which users name them; None: as `ids`.

    Attributes:
        prefix: int64 [k + 1], anchors before each episode.

    Raises:
        InvalidArgumentError: there is no anchor.
    """

    def __init__(
        self,
        lengths: Int64Array,
        offsets: Int64Array | None,
        ids: Int64Array | None,
        first: Int64Array | None,
        rule: WindowRule,
        eligible: StepMask | None = None,
        excluded: npt.NDArray[np.bool_] | None = None,
        names: Int64Array | None = None,
    ) -> None:
        self.rule = rule
        self.ids = None if ids is None else np.ascontiguousarray(ids, np.int64)
        #: int64 [k], the ids for messages and updates; None: 0 to k - 1.
        self.names = self.ids if names is None else np.ascontiguousarray(names, np.int64)
        self.offsets = offsets_of(lengths) if offsets is None else np.ascontiguousarray(offsets, np.int64)
        self.first = self.offsets[:-1] if first is None else np.ascontiguousarray(first, np.int64)
        self.eligible, self.excluded = eligible, excluded
        if excluded is not None:
            lengths = lengths - excluded
        if eligible is not None:
            lengths = np.ascontiguousarray(lengths, np.int64)
            if not rule.all_steps_are_anchors():
                self.eligible = eligible = _on_grid(eligible, self.first, lengths, rule)
            self.prefix = offsets_of(eligible.counts(self.first, lengths))
        elif rule.all_steps_are_anchors() and excluded is None:
            self.prefix = self.offsets
        else:
            self.prefix = offsets_of(rule.anchor_counts(lengths))
        if not self.total:
            raise self._no_anchor(lengths)

    def __len__(self) -> int:
        return len(self.prefix) - 1

    @property
    def total(self) -> int:
        """The number of anchors."""
        return int(self.prefix[-1])

    def counts(self) -> Int64Array:
        """Returns the number of anchors of each episode, int64 [k]."""
        return np.diff(self.prefix)

    def of(self, episodes: Int64Array) -> Anchors:
        """Returns the anchors of some of the episodes.

        episodes: int64 [m], their indices, ascending.
        """
        chosen = copy.copy(self)
        chosen.ids = episodes if self.ids is None else self.ids[episodes]
        chosen.names = chosen.ids if self.names is None or self.names is self.ids else self.names[episodes]
        chosen.first = self.first[episodes]
        chosen.excluded = None if self.excluded is None else self.excluded[episodes]
        chosen.offsets = offsets_of(np.diff(self.offsets)[episodes])
        chosen.prefix = chosen.offsets if self.prefix is self.offsets else offsets_of(self.counts()[episodes])
        return chosen

    def flags(self) -> npt.NDArray[np.bool_]:
        """Returns whether each step of the episodes is an anchor, bool [steps]."""
        found = self._flags()
        if self.excluded is not None:
            found[self.offsets[1:][self.excluded] - 1] = False
        return found

    def _flags(self) -> npt.NDArray[np.bool_]:
        """Returns the same, maybe with last steps that are excluded."""
        steps, lengths = int(self.offsets[-1]), np.diff(self.offsets)
        if self.eligible is None and self.rule.all_steps_are_anchors():
            return np.ones(steps, np.bool_)
        if self.eligible is not None:
            of_dataset = self.eligible.flags(0, self.eligible.num_steps)
            return of_dataset[np.arange(steps) + np.repeat(self.first - self.offsets[:-1], lengths)]
        number, skipped = np.divmod(
            np.arange(steps) - np.repeat(self.offsets[:-1] + self.rule.first_anchor, lengths), self.rule.stride
        )
        return np.asarray((skipped == 0) & (number >= 0) & (number < np.repeat(self.counts(), lengths)))

    def _no_anchor(self, lengths: Int64Array) -> InvalidArgumentError:
        if not len(lengths):
            return InvalidArgumentError(
                "there is no episode to draw from", hint="the dataset or view is empty: select at least one episode"
            )
        if not self.rule.short and lengths.max() < self.rule.context:
            return InvalidArgumentError(
                f"no episode has the {self.rule.context} steps of the context; the longest has {lengths.max()}",
                hint=f"give context={lengths.max()} or less, or leave WindowOptions(short=False) out",
            )
        if self.excluded is not None and not lengths.any():
            return InvalidArgumentError(
                f"each of the {len(lengths)} episodes is one step without a next observation",
                hint="give BatchOptions(preset_options={'transitions': {'missing_next': 'mark'}}) to draw such steps",
            )
        return InvalidArgumentError("no window satisfies the filter of steps", hint="relax the filter or its mode")


def _on_grid(mask: StepMask, first: Int64Array, lengths: Int64Array, rule: WindowRule) -> StepMask:
    """Returns the steps of the mask that are anchors of the rule."""
    words = np.zeros_like(mask.words)
    cpu.step_mask.keep_grid(
        mask.words, first, lengths, rule.first_anchor, rule.stride, rule.anchor_counts(lengths), words
    )
    return StepMask(mask.num_steps, words)
