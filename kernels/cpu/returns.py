"""Discounted return-to-go."""

from __future__ import annotations

from gear_data.kernels.cpu.native import cached_njit


@cached_njit
def returns_to_go(rewards, lengths, discount, out):  # type: ignore[no-untyped-def]
    """Sums: out[t] = rewards[t] + discount * rewards[t + 1] + ... of the episode.

    Args:
        rewards: float64 [steps], of whole episodes one after another; summed from each episode's end.
        lengths: int64 [episodes].
        discount: float.
        out: float32 [steps].
    """
    first = 0
    for length in lengths:
        total = 0.0
        for t in range(first + length - 1, first - 1, -1):
            total = rewards[t] + discount * total
            out[t] = total
        first += length
