"""PassLayout: the steps and the windows of each pass over a loader."""

from __future__ import annotations

from dataclasses import dataclass

from gear_data.common.keywords import check_range
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.selection.samplers import Selector

#: The end of a pass without end, larger than any step.
NO_END = 1 << 62


@dataclass(frozen=True)
class PassLayout:
    """The steps and the windows of each pass.

    Steps are numbered over all passes: pass p of n batches has the steps p * n to (p + 1) * n - 1.

    Attributes:
        batch_size: windows of a whole batch.
        batches: n, the batches of a pass; None: a pass has no end.
        windows: windows of a pass whose last batch is short; None: all batches are whole.
        repeat: whether every pass has the steps 0 to n - 1.
    """

    batch_size: int
    batches: int | None
    windows: int | None
    repeat: bool

    def identity(self) -> list[int] | None:
        """Returns everything that the windows of a step depend on, JSON-able."""
        return None if self.batches is None or self.windows is None else [self.batches, self.windows]

    @property
    def last_rows(self) -> int:
        """Windows of the last batch of a pass."""
        if self.batches is None or self.windows is None:
            return self.batch_size
        return self.windows - (self.batches - 1) * self.batch_size

    def rows(self, step: int) -> int:
        """Returns the windows of a step's batch."""
        if self.batches is None or self.windows is None or (step + 1) % self.batches:
            return self.batch_size
        return self.last_rows

    def first_slot(self, step: int) -> int:
        """Returns the number of windows in all batches before a step."""
        if self.batches is None or self.windows is None:
            return step * self.batch_size
        number, place = divmod(step, self.batches)
        return number * self.windows + place * self.batch_size

    def number(self, step: int) -> int:
        """Returns the number of a step's pass; 0 if passes repeat or have no end."""
        return step // self.batches if self.batches and not self.repeat else 0

    def start(self, number: int) -> int:
        """Returns the first step of a pass that has an end."""
        return 0 if self.repeat or self.batches is None else number * self.batches

    def end(self, number: int) -> int:
        """Returns the step after the last one of a pass."""
        return NO_END if self.batches is None else self.start(number) + self.batches

    def check_step(self, step: object) -> int:
        """Returns the step; raises InvalidArgumentError if no pass has such a step."""
        last = self.batches - 1 if self.batches is not None and (self.repeat or not self.batches) else None
        check_range("step", step, 0, last)
        return int(step)  # type: ignore[call-overload, no-any-return]


def pass_layout(config: LoaderConfig, selector: Selector, num_windows: int) -> PassLayout:
    """Returns the layout of a loader's passes.

    Args:
        config: the arguments of the loader.
        selector: of its first dataset.
        num_windows: number of windows in its first dataset.

    Raises:
        InvalidArgumentError: `epochs` for a mixture, or for packed windows that are drawn with replacement.
    """
    size, epochs, repeat = config.batch_size, config.epochs, config.passes == "repeat"
    if epochs is None:
        return PassLayout(size, config.steps, None, repeat)
    if config.proportions is not None:
        raise InvalidArgumentError("a mixture has no epochs", hint="give steps=, or no end")
    windows = selector.epoch_slots(epochs)
    if windows is None and config.packing is not None:
        raise InvalidArgumentError(
            "windows that are drawn with replacement have no epochs in packed rows",
            hint="give steps=, or sampler='shuffle'",
        )
    batches = -(-(epochs * num_windows if windows is None else windows) // size)
    return PassLayout(size, batches, None if windows == batches * size else windows, repeat)
