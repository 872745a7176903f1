"""StepMask: which steps of a dataset satisfy a condition, one bit a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.windows import Int64Array, WindowRule

#: Which steps of a window must satisfy a condition.
MODES = ("first", "all")


class StepMask:
    """A bitmap over the steps of a whole dataset, numbered through.

    Attributes:
        num_steps: how many steps there are.
        words: uint64 [ceil(num_steps / 64)]; step s is bit s % 64 of word s // 64.
        ranks: int64 [ceil(num_steps / 512) + 1]; set bits before step 512 * i, and last all of them.
    """

    def __init__(self, num_steps: int, words: npt.NDArray[np.uint64]) -> None:
        from gear_data.kernels.cpu.step_mask import BLOCK_BITS, running_counts

        self.num_steps = num_steps
        self.words = words
        self.ranks = np.empty(-(-num_steps // BLOCK_BITS) + 1, np.int64)
        running_counts(self.words, self.ranks)

    @classmethod
    def from_blocks(cls, num_steps: int, blocks: Iterable[tuple[int, npt.NDArray[np.bool_]]]) -> StepMask:
        """The mask of steps first to first + len(flags) for every block (first, bool flags), in any order; steps of
        no block do not satisfy.

        Raises:
            InvalidArgumentError: a block outside the steps.
        """
        from gear_data.kernels.cpu.step_mask import set_flags

        words = _no_words(num_steps)
        for first, flags in blocks:
            if first < 0 or first + len(flags) > num_steps:
                raise InvalidArgumentError(f"steps {first} to {first + len(flags)} are not among the {num_steps}")
            set_flags(words, first, np.ascontiguousarray(flags).view(np.uint8))
        return cls(num_steps, words)

    def __and__(self, other: StepMask) -> StepMask:
        """The steps that satisfy both; masks of one dataset."""
        return StepMask(self.num_steps, self.words & other.words)

    @property
    def count(self) -> int:
        """How many steps satisfy."""
        return int(self.ranks[-1])

    def flags(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """bool [last - first]: whether each of steps first to last satisfies."""
        word = first // 64
        bits = np.unpackbits(self.words[word : -(-last // 64)].view(np.uint8), bitorder="little")
        return bits[first - word * 64 : last - word * 64].view(np.bool_)

    def counts(self, first: Int64Array, lengths: Int64Array) -> Int64Array:
        """int64 [k]: steps that satisfy among the lengths[i] from first[i] on."""
        from gear_data.kernels.cpu.step_mask import counts_between

        out = np.empty(len(lengths), np.int64)
        counts_between(self.words, self.ranks, first, lengths, out)
        return out

    def digest(self) -> str:
        """xxh3-128 of the mask, for fingerprints."""
        import xxhash

        digest = xxhash.xxh3_128(self.num_steps.to_bytes(8, "little"))
        digest.update(self.words.astype("<u8", copy=False).data)
        return digest.hexdigest()

    def anchors(self, offsets: Int64Array, rule: WindowRule, mode: str) -> StepMask:
        """The steps whose windows satisfy, as anchors of `rule`: the window's first step does (`first`), or every step
        of it (`all`). Steps off the rule's stride are left in.

        Args:
            offsets: int64 [n + 1], episode e is steps offsets[e] to offsets[e + 1] of the dataset.
            rule: how a window is cut.
            mode: `first` or `all`.

        Raises:
            UnknownNameError: no such mode.
            InvalidArgumentError: the rule draws a window's place, so that no step tells where its window starts.
        """
        from gear_data.kernels.cpu.step_mask import every_step_holds, first_step_holds

        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if rule.anchor == "random":
            raise InvalidArgumentError(
                "windows with anchor='random' cannot be chosen by a filter of steps", hint="use anchor='start' or 'end'"
            )
        words = _no_words(self.num_steps)
        if mode == "all":
            every_step_holds(self.words, offsets, rule.context, rule.anchor == "end", words)
        elif rule.anchor == "end":
            first_step_holds(self.words, offsets, rule.context, words)
        else:
            return self
        return StepMask(self.num_steps, words)


def _no_words(num_steps: int) -> npt.NDArray[np.uint64]:
    return np.zeros(-(-num_steps // 64), np.uint64)
