"""The floor for machines without a C compiler: the functions of floor.c, by Numba."""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.native import pointer
from gear_data.kernels.cpu.random import DOMAIN_UNIFORM, draw_below


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _draw(starts, anchors, seed, step, batch):  # type: ignore[no-untyped-def]
    """Returns the windows' first steps among all steps, in their episodes, and the steps from them to the end."""
    anchor = np.empty(batch, np.int64)
    draw_below(seed, DOMAIN_UNIFORM, step, anchors[-1], anchor)
    episode = np.searchsorted(anchors, anchor, "right") - 1
    first = anchor - anchors[episode]
    row = starts[episode] + first
    return row, first, starts[episode + 1] - row


@njit(nogil=True)  # type: ignore[untyped-decorator]
def decision_transformer(tables, seed, step, batch, context, *addresses):  # type: ignore[no-untyped-def]
    """Fills windows of `context` steps: see floor.c."""
    all_states, all_actions, all_rewards, all_returns, _, starts, anchors = tables
    width, action_width = all_states.shape[1], all_actions.shape[1]
    states = carray(pointer(addresses[0]), (batch, context, width), np.float32)
    actions = carray(pointer(addresses[1]), (batch, context, action_width), np.float32)
    rewards = carray(pointer(addresses[2]), (batch, context), np.float32)
    returns = carray(pointer(addresses[3]), (batch, context), np.float32)
    timesteps = carray(pointer(addresses[4]), (batch, context), np.int64)
    mask = carray(pointer(addresses[5]), (batch, context), np.float32)
    counts = carray(pointer(addresses[6]), (batch,), np.int64)
    rows, firsts, left = _draw(starts, anchors, seed, step, batch)
    for b in range(batch):
        counts[b] = min(left[b], context)
        head = context - counts[b]
        for t in range(context):
            row = rows[b] + t - head
            valid = t >= head
            for i in range(width):
                states[b, t, i] = all_states[row, i] if valid else np.float32(0)
            for i in range(action_width):
                actions[b, t, i] = all_actions[row, i] if valid else np.float32(-10)
            rewards[b, t] = all_rewards[row, 0] if valid else np.float32(0)
            returns[b, t] = np.float32(np.float64(all_returns[row, 0]) * 0.001) if valid else np.float32(0)
            timesteps[b, t], mask[b, t] = firsts[b] + t - head if valid else 0, valid


@njit(nogil=True)  # type: ignore[untyped-decorator]
def transitions(tables, seed, step, batch, context, *addresses):  # type: ignore[no-untyped-def]
    """Fills single steps: see floor.c."""
    all_observations, all_actions, all_rewards, _, all_terminated, starts, anchors = tables
    width, action_width = all_observations.shape[1], all_actions.shape[1]
    observations = carray(pointer(addresses[0]), (batch, width), np.float32)
    actions = carray(pointer(addresses[1]), (batch, action_width), np.float32)
    rewards = carray(pointer(addresses[2]), (batch,), np.float32)
    terminated = carray(pointer(addresses[3]), (batch,), np.uint8)
    next_observations = carray(pointer(addresses[4]), (batch, width), np.float32)
    masks = carray(pointer(addresses[5]), (batch,), np.float32)
    counts = carray(pointer(addresses[6]), (batch,), np.int64)
    rows, _, left = _draw(starts, anchors, seed, step, batch)
    for b in range(batch):
        row = rows[b]
        for i in range(width):
            observations[b, i] = all_observations[row, i]
            next_observations[b, i] = all_observations[row + 1, i] if left[b] > 1 else np.float32(0)
        for i in range(action_width):
            actions[b, i] = all_actions[row, i]
        rewards[b], terminated[b], masks[b] = all_rewards[row, 0], all_terminated[row], 1 - all_terminated[row]
        counts[b] = context
