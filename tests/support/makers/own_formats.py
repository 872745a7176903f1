"""Writers of formats with names and flags of their own, for tests/support/makers/ideas.py. Not a test.

A writer takes episodes under the names that a user would choose, and writes them under the names of its format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from tests.support.makers.flat_episodes import Episode, flat_arrays, length_of

_MINARI = ("observations", "actions", "rewards", "terminations", "truncations")
_FLAGS = {"terminals": "terminated", "timeouts": "truncated"}


def _with_flags(episode: Episode) -> dict[str, Any]:
    """Returns an episode with the flags `terminated` and `truncated`, of one value a step."""
    found = {_FLAGS.get(name, name): values for name, values in episode.items()}
    steps = length_of(episode)
    for name in ("terminated", "truncated"):
        last = found.get(name, False)
        found[name] = last if np.ndim(last) else np.arange(steps) == (steps - 1 if last else -1)
    return found


def _with_last_observation(episode: Episode) -> dict[str, Any]:
    """Returns an episode with flags and T + 1 observations. Without a final observation, the last one is zero."""
    found = _with_flags(episode)
    observations, steps = np.asarray(found["observations"]), length_of(episode)
    if len(observations) == steps:
        after = np.asarray(found.pop("next_observations", np.zeros((1, *observations.shape[1:]))))
        found["observations"] = np.concatenate([observations, after[-1:]])
    return found


def _minari_facts(episodes: Sequence[Episode], data_format: str) -> str:
    spaces = {}
    for kind, name in (("observation", "observations"), ("action", "actions")):
        shape = np.asarray(episodes[0][name]).shape[1:]
        box = {"type": "Box", "dtype": "float64", "shape": list(shape)}
        box |= {"low": np.full(shape, -9.0).tolist(), "high": np.full(shape, 9.0).tolist()}
        spaces[f"{kind}_space"] = json.dumps(box)
    counts = {"total_episodes": len(episodes), "total_steps": sum(map(length_of, episodes))}
    return json.dumps(
        {**spaces, **counts, "data_format": data_format, "dataset_id": "a/b-v0", "minari_version": "0.5.4"}
    )


def _minari_episode(episode: Episode) -> dict[str, Any]:
    names = {"terminated": "terminations", "truncated": "truncations"}
    return {names.get(name, name): values for name, values in _with_last_observation(episode).items()}


def minari_hdf5(folder: Path, episodes: Sequence[Episode]) -> Path:
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for i, episode in enumerate(episodes):
            group = file.create_group(f"episode_{i}")
            group.attrs.update({"id": i, "total_steps": length_of(episode)})
            for name, values in _minari_episode(episode).items():
                if np.ndim(values):
                    group[name if name in _MINARI else f"infos/{name}"] = values
                else:
                    group.attrs[name] = values
    (folder / "metadata.json").write_text(_minari_facts(episodes, "hdf5"))
    return folder


def minari_arrow(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes T + 1 rows an episode; columns of T values end with a row of zeros."""
    for i, episode in enumerate(episodes):
        (folder / str(i)).mkdir()
        facts: dict[str, Any] = {"id": i, "total_steps": length_of(episode)}
        columns = {}
        for name, values in _minari_episode(episode).items():
            if np.ndim(values) == 0:
                facts[name] = values
                continue
            array = np.asarray(values)
            if name != "observations":
                array = np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
            flat = pa.array(array.reshape(-1).tolist(), pa.from_numpy_dtype(array.dtype))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, array[0].size) if array.ndim > 1 else flat
        table = pa.table(columns)
        with pa.OSFile(str(folder / f"{i}/part-0.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        (folder / f"{i}/metadata.json").write_text(json.dumps(facts))
    (folder / "metadata.json").write_text(_minari_facts(episodes, "arrow"))
    return folder


def vd4rl(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes time steps, T + 1 rows an episode: the first row has no action and no reward."""
    rows: dict[str, list[Any]] = {}
    for episode in map(_with_last_observation, episodes):
        steps = len(episode["rewards"])
        values = {
            "observation": episode["observations"],
            "action": np.concatenate([np.zeros_like(episode["actions"][:1]), episode["actions"]]),
            "reward": np.append(0.0, episode["rewards"]),
            "discount": np.append(1.0, 1.0 - np.asarray(episode["terminated"])),
            "step_type": np.array([0, *[1] * (steps - 1), 2]),
        }
        others = episode.keys() - {"observations", "actions", "rewards", "terminated", "truncated"}
        values |= {name: np.asarray(episode[name])[[0, *range(steps)]] for name in sorted(others)}
        for name, each in values.items():
            rows.setdefault(name, []).append(each)
    return write_hdf5(folder / "data.hdf5", {name: np.concatenate(parts) for name, parts in rows.items()})


def d3rlpy(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes version 2.1: a dataset for each episode and column, and whether the episode terminated."""
    arrays: dict[str, Any] = {"num_episodes": len(episodes), "version": "2.1"}
    for i, episode in enumerate(map(_with_flags, episodes)):
        values = {name: each for name, each in episode.items() if name != "truncated"}
        values["terminated"] = bool(np.any(episode["terminated"]))
        values["rewards"] = np.asarray(episode.get("rewards", np.zeros(length_of(episode))))[:, None]
        arrays.setdefault("columns", [*values])
        arrays |= {f"{name}_{i}": each for name, each in values.items()}
    return write_hdf5(folder / "data.h5", arrays)


def act(folder: Path, episodes: Sequence[Episode]) -> Path:
    names = {"observations": "observations/qpos", "actions": "action"}
    for i, episode in enumerate(episodes):
        arrays = {names.get(name, name): values for name, values in episode.items()}
        write_hdf5(folder / f"episode_{i}.hdf5", arrays)
    return folder


def stable_baselines3(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes a buffer of one environment, with one row more than there are steps."""
    arrays = flat_arrays([_with_flags(episode) for episode in episodes], ids=False)
    terminated = arrays.pop("terminated")
    arrays |= {"timeouts": arrays.pop("truncated")}
    arrays["dones"] = terminated.astype(np.bool_) | arrays["timeouts"].astype(np.bool_)
    steps = len(terminated)
    rows = {name: np.concatenate([values, values[:1]])[:, None] for name, values in arrays.items()}
    np.savez(folder / "data.npz", pos=steps, full=False, **rows)
    return folder / "data.npz"


def torchrl(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes memory maps of steps: what follows an action is below `next`."""
    from tensordict import TensorDict

    flat = flat_arrays(episodes)
    steps = len(flat["episode"])
    outcomes = {"rewards": "reward", "dones": "done", **_FLAGS, "terminated": "terminated", "truncated": "truncated"}
    after = {new: flat.pop(name)[:, None] for name, new in outcomes.items() if name in flat}
    if "next_observations" in flat:
        after["observation"] = flat.pop("next_observations")
    ids = TensorDict({"traj_ids": flat.pop("episode")}, [steps])
    names = {"observations": "observation", "actions": "action"}
    before = {names.get(name, name): values for name, values in flat.items()}
    TensorDict({**before, "collector": ids, "next": TensorDict(after, [steps])}, [steps]).memmap(str(folder))
    return folder


def rlds(folder: Path, episodes: Sequence[Episode]) -> Path:
    """Writes T + 1 rows an episode: the last has the final observation. Values of another length are the episode's.

    Flags of one value a step, such as `is_last`, are set in the row after the step. tf.train.Example has only float32.
    """
    import tensorflow_datasets as tfds

    names = {"observations": "observation", "actions": "action", "rewards": "reward"}
    examples = []
    for episode in episodes:
        found, count = _with_last_observation(episode), length_of(episode)
        at = np.arange(count + 1)
        rows: dict[str, Any] = {"is_first": at == 0, "is_last": at == count}
        if not episode.keys() & {"is_last", "discount"}:
            rows["is_terminal"] = rows["is_last"] & np.any(found["terminated"])
        facts = {}
        for name, value in found.items():
            values = np.asarray(value)
            values = values.astype(np.float32) if values.dtype == np.float64 else values
            if name == "observations":
                rows["observation"] = values
            elif name.startswith("observations."):
                rows["observation"] = {"state": rows["observation"], name.partition(".")[2]: _one_more(values)}
            elif name in ("is_last", "is_terminal"):
                rows[name] = np.concatenate([np.zeros_like(values[:1]), values])
            elif values.shape[:1] != (count,):
                facts[name] = values
            elif name not in ("terminated", "truncated", "is_first"):
                rows[names.get(name, name)] = _one_more(values)
        examples.append({"steps": rows, **facts})
    features = tfds.features.FeaturesDict(_features(examples, tfds))
    identity = tfds.core.DatasetIdentity("arm", tfds.core.Version("1.0.0"), str(folder), __name__)
    writer = tfds.core.SequentialWriter(tfds.core.DatasetInfo(builder=identity, features=features), len(examples))
    writer.initialize_splits(["train"])
    writer.add_examples({"train": examples})
    writer.close_all()
    return folder


def _one_more(values: Any) -> Any:
    """Returns values with a row after the last: the first one again, or zeros if there is none."""
    return np.resize(values, (len(values) + 1, *values.shape[1:]))


def _features(examples: Sequence[Any], tfds: Any) -> dict[str, Any]:
    """Returns the features of episodes."""

    def of(values: Sequence[Any], first: int) -> Any:
        if isinstance(values[0], Mapping):
            return {name: of([each[name] for each in values], first) for name in values[0]}
        dtype = values[0].dtype
        return tfds.features.Tensor(shape=values[0].shape[first:], dtype=np.object_ if dtype.kind == "S" else dtype)

    facts = {name: of([each[name] for each in examples], 0) for name in examples[0] if name != "steps"}
    return {"steps": tfds.features.Dataset(of([each["steps"] for each in examples], 1)), **facts}


def write_hdf5(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Writes each array as a dataset, and returns the path."""
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            store(file, name, values)
    return path


def store(file: h5py.File, name: str, values: Any) -> None:
    """Writes an array as a dataset. Byte strings of several lengths become rows of uint8 of several lengths."""
    if getattr(values, "dtype", None) == np.object_ and isinstance(values[0], bytes):
        rows = file.create_dataset(name, len(values), h5py.vlen_dtype(np.uint8))
        for i, each in enumerate(values):
            rows[i] = np.frombuffer(each, np.uint8)
    else:
        file[name] = values
