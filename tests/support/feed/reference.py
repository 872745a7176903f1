"""The expected batches, from plain Python loops over integers and lists.

The loops share no code with the package.

Sources: Philox4x32-10 after Salmon et al. (SC 2011); bounded integers after Lemire (ACM TOMACS 2019); the batch of
Decision Transformer after the data collator of HuggingFace's "Train your first Decision Transformer" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
DOMAIN_UNIFORM, DOMAIN_SHUFFLE, DOMAIN_FEISTEL = 1, 2, 3

Window = tuple[int, int, int]  # episode, first step, valid steps


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, ...]:
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
    return tuple(c)


def word64(seed: int, domain: int, step: int, slot: int, attempt: int) -> int:
    counter = (slot, step & MASK32, step >> 32, domain << 24 | attempt)
    low, high, _, _ = philox(counter, (seed & MASK32, seed >> 32))
    return high << 32 | low


def below(seed: int, domain: int, step: int, slot: int, bound: int) -> int:
    attempt = 0
    while True:
        high, low = divmod(word64(seed, domain, step, slot, attempt) * bound, 1 << 64)
        if low >= (1 << 64) % bound:
            return high
        attempt += 1


def fisher_yates(seed: int, domain: int, epoch: int, size: int) -> list[int]:
    order = list(range(size))
    for i in reversed(range(1, size)):
        j = below(seed, domain, epoch, i, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def mix(z: int) -> int:
    """The finalizer of SplitMix64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
    return z ^ z >> 31


def feistel(value: int, keys: Sequence[int], size: int) -> int:
    """Permutes by an unbalanced Feistel network on the bits of size - 1.

    It has at least one bit, and repeats until the result is below size.
    """
    bits = max(1, (size - 1).bit_length())
    widths = (bits - bits // 2, bits // 2)
    while True:
        left_width, right_width = widths
        left, right = divmod(value, 1 << right_width)
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) % (1 << left_width))
            left_width, right_width = right_width, left_width
        value = left << right_width | right
        if value < size:
            return value


def locate(position: int, lengths: Sequence[int], context: int) -> Window:
    for episode, length in enumerate(lengths):
        if position < length:
            return episode, position, min(context, length - position)
        position -= length
    raise IndexError(position)


def uniform_windows(seed: int, step: int, batch: int, lengths: Sequence[int], context: int) -> list[Window]:
    draws = (below(seed, DOMAIN_UNIFORM, step, slot, sum(lengths)) for slot in range(batch))
    return [locate(position, lengths, context) for position in draws]


def shuffle_positions(seed: int, first: int, last: int, size: int) -> list[int]:
    """Slots first to last of the endless sequence of epochs over `size` steps."""
    positions = []
    for epoch in range(first // size, (last - 1) // size + 1):
        if size < 1 << 16:
            order = fisher_yates(seed, DOMAIN_SHUFFLE, epoch, size)
        else:
            keys = [word64(seed, DOMAIN_FEISTEL, epoch, i, 0) for i in range(12)]
            inside = range(max(0, first - epoch * size), min(size, last - epoch * size))
            positions += [feistel(place, keys, size) for place in inside]
            continue
        positions += order[max(0, first - epoch * size) : min(size, last - epoch * size)]
    return positions


def shuffle_windows(seed: int, step: int, batch: int, lengths: Sequence[int], context: int) -> list[Window]:
    positions = shuffle_positions(seed, step * batch, (step + 1) * batch, sum(lengths))
    return [locate(position, lengths, context) for position in positions]


WINDOWS = {"uniform": uniform_windows, "shuffle": shuffle_windows}


def as_windows(selection: Mapping[str, Any]) -> list[Window]:
    """loader.windows(step) as a list."""
    return list(zip(*(selection[name].tolist() for name in ("episode_id", "start", "length")), strict=True))


def returns_to_go(rewards: Sequence[float]) -> list[float]:
    return [math.fsum(float(reward) for reward in rewards[t:]) for t in range(len(rewards))]


def right_padded(column: Sequence[np.ndarray], windows: Sequence[Window], first: int, last: int) -> np.ndarray:
    """Returns steps first to last relative to each window's start.

    Each step has its own position; steps outside the episode are zero.
    """
    out = np.zeros((len(windows), last - first, *column[0].shape[1:]), column[0].dtype)
    for row, (episode, start, _) in enumerate(windows):
        for place in range(last - first):
            step = start + first + place
            if 0 <= step < len(column[episode]):
                out[row, place] = column[episode][step]
    return out


def valid_places(lengths: Sequence[int], windows: Sequence[Window], first: int, last: int) -> np.ndarray:
    """bool [B, last - first]: whether the step is inside its episode."""
    return np.array(
        [[0 <= start + k < lengths[episode] for k in range(first, last)] for episode, start, _ in windows], np.bool_
    ).reshape(len(windows), last - first)


def left_padded(column: Sequence[np.ndarray], windows: Sequence[Window], context: int, fill: float) -> np.ndarray:
    """float64 [B, context, width]: the window's steps at the end."""
    out = []
    for episode, start, length in windows:
        steps = [np.asarray(row, np.float64).reshape(-1) for row in column[episode][start : start + length]]
        padding = [np.full(len(steps[0]), fill)] * (context - length)
        out.append(np.stack([*padding, *steps]))
    return np.stack(out)


def decision_transformer(
    episodes: Sequence[Mapping[str, np.ndarray]],
    windows: Sequence[Window],
    context: int,
    mean: np.ndarray | float = 0.0,
    std: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Returns float64 states in the collator's order: pad, then normalise."""
    columns = {name: [episode[name] for episode in episodes] for name in episodes[0]}
    returns = [np.array(returns_to_go(rewards)) for rewards in columns["rewards"]]
    states = left_padded(columns["observations"], windows, context, 0.0)
    return {
        "states": states if std is None else (states - mean) / (std + 1e-6),
        "actions": left_padded(columns["actions"], windows, context, -10.0),
        "rewards": left_padded(columns["rewards"], windows, context, 0.0),
        "returns_to_go": left_padded(returns, windows, context, 0.0) / 1000.0,
        "timesteps": np.array([[0] * (context - n) + list(range(s, s + n)) for _, s, n in windows]),
        "attention_mask": np.array([[0.0] * (context - n) + [1.0] * n for _, _, n in windows]),
    }
