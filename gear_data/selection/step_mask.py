"""StepMask: the steps of a dataset that satisfy a condition, as bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array, WindowRule
from gear_data.words import StepMode

#: The steps of a window that must satisfy a condition.
MODES: tuple[StepMode, ...] = get_args(StepMode)


class StepMask:
    """A bitmap over the steps of a whole dataset.

    Attributes:
        num_steps: steps of the dataset.
        words: uint64 [ceil(num_steps / 64)]; step s is bit s % 64 of word s // 64.
        ranks: int64 [ceil(num_steps / 512) + 1]; set bits before step 512 * i; the last entry counts all set bits.
    """

    def __init__(self, num_steps: int, words: npt.NDArray[np.uint64]) -> None:
        self.num_steps = num_steps
        self.words = words
        self.ranks = np.empty(-(-num_steps // cpu.step_mask.BLOCK_BITS) + 1, np.int64)
        cpu.step_mask.running_counts(self.words, self.ranks)

    @classmethod
    def from_blocks(cls, num_steps: int, blocks: Iterable[tuple[int, npt.NDArray[np.bool_]]]) -> StepMask:
        """Builds a mask from blocks (first, flags), in any order.

        A block holds the flags of steps first to first + len(flags). Steps in no block do not satisfy the condition.

        Raises:
            InvalidArgumentError: a block lies outside the steps.
        """
        words = _no_words(num_steps)
        for first, flags in blocks:
            if first < 0 or first + len(flags) > num_steps:
                raise InvalidArgumentError(
                    f"a block has the steps {first} to {first + len(flags) - 1}, and the dataset has {num_steps} steps"
                )
            cpu.step_mask.set_flags(words, first, np.ascontiguousarray(flags).view(np.uint8))
        return cls(num_steps, words)

    def __and__(self, other: StepMask) -> StepMask:
        """Returns the mask of the steps that satisfy both conditions.

        Both masks must be of one dataset.
        """
        return StepMask(self.num_steps, self.words & other.words)

    @property
    def count(self) -> int:
        """The number of steps that satisfy the condition."""
        return int(self.ranks[-1])

    def flags(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Returns whether each of the steps first to last - 1 satisfies the condition.

        The result is bool [last - first].
        """
        word = first // 64
        bits = np.unpackbits(self.words[word : -(-last // 64)].view(np.uint8), bitorder="little")
        return bits[first - word * 64 : last - word * 64].view(np.bool_)

    def counts(self, first: Int64Array, lengths: Int64Array) -> Int64Array:
        """Counts the steps that satisfy the condition in k ranges of steps.

        Args:
            first, lengths: int64 [k]; range i is the steps first[i] to first[i] + lengths[i] - 1.

        Returns:
            int64 [k].
        """
        out = np.empty(len(lengths), np.int64)
        cpu.step_mask.counts_between(self.words, self.ranks, first, lengths, out)
        return out

    def digest(self) -> str:
        """Returns the xxh3-128 of the mask, for fingerprints."""
        digest = xxhash.xxh3_128(self.num_steps.to_bytes(8, "little"))
        digest.update(self.words.astype("<u8", copy=False).data)
        return digest.hexdigest()

    def anchors(self, offsets: Int64Array, rule: WindowRule, mode: str) -> StepMask:
        """Returns the mask of the anchor steps whose windows satisfy the condition.

        The result may have steps that the rule's stride skips; `Anchors` removes them.

        Args:
            offsets: int64 [n + 1]; episode e is steps offsets[e] to offsets[e + 1] of the dataset.
            rule: how a window is cut.
            mode: `first`: the window's first step satisfies the condition; `all`: every step of the window does.

        Raises:
            UnknownNameError: unknown mode.
            InvalidArgumentError: the rule draws the anchor's place in the window, so an anchor does not determine its
                window.
        """
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if rule.anchor == "random":
            raise InvalidArgumentError(
                "windows with anchor='random' cannot be chosen by a filter of steps",
                hint="use WindowOptions(anchor='start') or 'end'",
            )
        words = _no_words(self.num_steps)
        if mode == "all":
            cpu.step_mask.every_step_holds(self.words, offsets, rule.context, rule.anchor == "end", words)
        elif rule.anchor == "end":
            cpu.step_mask.first_step_holds(self.words, offsets, rule.context, words)
        else:
            return self
        return StepMask(self.num_steps, words)


def _no_words(num_steps: int) -> npt.NDArray[np.uint64]:
    return np.zeros(-(-num_steps // 64), np.uint64)
