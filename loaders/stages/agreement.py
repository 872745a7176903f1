"""The step from which a change of a loader holds, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gear_data.errors import InvalidArgumentError


def agreed_step(ranks: Sequence[tuple[int | None, int]]) -> int:
    """Returns the step from which a change holds.

    Args:
        ranks: for each rank, the step that it asks for (None: as soon as possible), and the first step that it has not
            started.

    Raises:
        InvalidArgumentError: the ranks ask for different steps, or for a step that a rank has started.
    """
    asked = {step for step, _ in ranks}
    if len(asked) > 1:
        raise InvalidArgumentError(
            f"the ranks give different from_step: {sorted(map(str, asked))}", hint="give one value on all ranks"
        )
    from_step, soonest = ranks[0][0], max(step for _, step in ranks)
    if from_step is not None and from_step < soonest:
        raise InvalidArgumentError(
            f"from_step is {from_step}, and batches up to step {soonest - 1} are already built",
            hint=f"give {soonest} or more, or leave it out",
        )
    return int(soonest if from_step is None else from_step)
