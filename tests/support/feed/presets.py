"""The published batch conventions as plain loops, one sample at a time.

They share no code with the package. Each names its source, and follows its order of operations on an episode's arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.feed import reference as ref
from tests.support.feed.reference import Window

Episodes = Sequence[Mapping[str, np.ndarray]]


def stacked(samples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    return {key: np.stack([np.asarray(sample[key]) for sample in samples]) for key in samples[0]}


def corl(
    episodes: Episodes, windows: Sequence[Window], context: int, mean: Any = 0.0, std: Any = 1.0
) -> dict[str, np.ndarray]:
    """`SequenceDataset.__prepare_sample` of tinkoff-ai/CORL.

    From algorithms/offline/dt.py: normalise, then pad on the right.
    """
    samples = []
    for episode, start, n in windows:
        data = episodes[episode]
        states = [(row.astype(np.float64) - mean) / std for row in data["observations"][start : start + n]]
        actions = [row.astype(np.float64) for row in data["actions"][start : start + n]]
        returns = [value * 0.001 for value in ref.returns_to_go(data["rewards"])[start : start + n]]
        while len(states) < context:
            states.append(np.zeros_like(states[0]))
            actions.append(np.zeros_like(actions[0]))
            returns.append(0.0)
        samples.append(
            {
                "states": states,
                "actions": actions,
                "returns": returns,
                "time_steps": [start + k for k in range(context)],
                "mask": [1.0] * n + [0.0] * (context - n),
            }
        )
    return stacked(samples)


def d3rlpy(
    episodes: Episodes, windows: Sequence[Window], context: int, terminated: Sequence[bool]
) -> dict[str, np.ndarray]:
    """`BasicTrajectorySlicer` of takuseno/d3rlpy 2.8.

    The casts of `TorchTrajectoryMiniBatch` follow.
    """
    samples = []
    for episode, start, n in windows:
        data, pad = episodes[episode], context - n
        last = start + n == len(data["rewards"]) and terminated[episode]
        observations, actions = list(data["observations"][start : start + n]), list(data["actions"][start : start + n])
        returns = ref.returns_to_go(data["rewards"])[start : start + n]
        samples.append(
            {
                "observations": [np.zeros_like(observations[0])] * pad + observations,
                "actions": [np.zeros_like(actions[0])] * pad + actions,
                "rewards": [[0.0]] * pad + [[value] for value in data["rewards"][start : start + n]],
                "returns_to_go": [[0.0]] * pad + [[value] for value in returns],
                "terminals": [[0.0]] * (context - 1) + [[1.0 if last else 0.0]],
                "timesteps": [0] * pad + [step + 1 for step in range(start, start + n)],
                "masks": [0.0] * pad + [1.0] * n,
            }
        )
    return stacked(samples)


def jat(episodes: Episodes, windows: Sequence[Window], context: int) -> dict[str, np.ndarray]:
    """`add_initial_reward`, `add_loss_weight` and `pad` of huggingface/jat.

    They are in scripts/train_jat.py and processing_jat.py.
    """
    samples = []
    for episode, start, n in windows:
        data = dict(episodes[episode])
        data["rewards"] = [0.0, *data["rewards"][:-1]]
        sample: dict[str, Any] = {}
        for key, values in data.items():
            rows = list(values[start : start + n])
            sample[key] = rows + [rows[0]] * (context - n)
        sample["attention_mask"] = [1] * n + [0] * (context - n)
        sample["loss_weight"] = [1.0] * context
        samples.append(sample)
    return stacked(samples)


def lerobot(
    episodes: Episodes, windows: Sequence[Window], deltas: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
    """`LeRobotDataset.__getitem__` of huggingface/lerobot.

    It takes the rows at `delta_indices`, clipped to the episode.
    """
    samples = []
    for episode, frame, _ in windows:
        data = episodes[episode]
        sample: dict[str, Any] = {key: values[frame] for key, values in data.items()}
        for key, delta in deltas.items():
            end = len(data[key])
            sample[key] = [data[key][max(0, min(end - 1, frame + k))] for k in delta]
            sample[f"{key}_is_pad"] = [frame + k < 0 or frame + k >= end for k in delta]
        samples.append(sample)
    return stacked(samples)


def gato_token(value: float, *, companded: bool = True, bins: int = 1024) -> int:
    """Encodes values by Reed et al. (2022), section 2.1 and appendix B.

    The mu-law with mu = 100 and M = 256, then uniform bins from 32000.
    """
    x = float(value)
    if companded:
        x = math.copysign(1.0, x) * math.log(abs(x) * 100.0 + 1.0) / math.log(256.0 * 100.0 + 1.0)
    x = max(-1.0, min(1.0, x))
    return 32000 + min(bins - 1, math.floor((x + 1.0) / 2.0 * bins))


def gato(
    episodes: Episodes, windows: Sequence[Window], observations: Sequence[str], actions: Sequence[str]
) -> tuple[list[list[int]], list[list[bool]]]:
    """Returns tokens and targets by Reed et al. (2022), section 2.2.

    A step has its observations, the separator 33024, its actions.
    """
    tokens, targets = [], []
    for episode, start, n in windows:
        sequence: list[int] = []
        mask: list[bool] = []
        for step in range(start, start + n):
            for names, target in ((observations, False), ((), False), (actions, True)):
                if not names:
                    sequence.append(33024)
                    mask.append(False)
                for name in names:
                    for value in np.ravel(episodes[episode][name][step]):
                        sequence.append(int(value) if value.dtype.kind in "iub" else gato_token(value))
                        mask.append(target)
        tokens.append(sequence)
        targets.append(mask)
    return tokens, targets


def following(
    column: Sequence[np.ndarray], windows: Sequence[Window], context: int, finals: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the next row of each step, and whether there is one.

    Both are padded on the right with zeros.
    """
    rows = np.zeros((len(windows), context, *column[0].shape[1:]), column[0].dtype)
    there = np.zeros((len(windows), context), np.bool_)
    for b, (episode, start, n) in enumerate(windows):
        after = [*column[episode][1:]] + ([] if finals[episode] is None else [finals[episode]])
        for k in range(n):
            if start + k < len(after):
                rows[b, k], there[b, k] = after[start + k], True
    return rows, there


def n_step_returns(
    episodes: Episodes, windows: Sequence[Window], context: int, n_step: int, discount: float
) -> np.ndarray:
    """Returns n-step returns, float64 [B, context], padded on the right.

    Each is the sum of discount^j reward[t + j] for j < n_step, within the episode.
    """
    out = np.zeros((len(windows), context))
    for b, (episode, start, n) in enumerate(windows):
        rewards = [float(reward) for reward in episodes[episode]["rewards"]]
        for k in range(n):
            out[b, k] = math.fsum(
                discount**j * reward for j, reward in enumerate(rewards[start + k : start + k + n_step])
            )
    return out
