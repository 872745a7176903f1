"""Makers of small valid sources, one per format. Not a test.

Each maker writes the rollouts as a source of its format to a folder. A writer of tests/support/makers/ideas.py makes
one, too.
tests/ingest/sources/test_invariants.py converts the sources, and tests/fuzz/readers.py damages them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import feather

import gear_data
from tests.support.makers.frames import calvin, dqn_replay, vd4rl
from tests.support.makers.ideas import WRITERS
from tests.support.makers.journals import journals
from tests.support.makers.tar_samples import write_samples
from tests.support.rollouts import (
    Rollout,
    episode_numbers,
    episode_table,
    step_table,
    write_d4rl,
    write_episodes,
    write_lerobot,
    write_steps,
)

Maker = Callable[[Path, Sequence[Rollout]], object]


def _flat(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    names = rollouts[0].columns
    return {name: np.concatenate([rollout.columns[name] for rollout in rollouts]) for name in names}


def _png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 5, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG" if seed % 2 else "JPEG")
    return file.getvalue()


def episode_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    tasks = [("one", "two", None)[i % 3] for i in range(len(rollouts))]
    write_episodes(folder / "a.parquet", rollouts, row_group=2, task=tasks)
    write_episodes(folder / "b.parquet", rollouts, task=tasks)


def step_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    write_steps(folder / "a.parquet", rollouts, row_group=7)


def saved_step_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a dataset of HuggingFace `datasets` in two files, with `save_to_disk`."""
    import datasets

    table = step_table([r.columns for r in rollouts], episode_index=episode_numbers(rollouts))
    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(folder, num_shards=2)


def arrow_episode_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes an IPC stream of several batches, and a compressed Feather file."""
    folder.mkdir(parents=True)
    table = episode_table([r.columns for r in rollouts], task=["one"] * len(rollouts))
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    feather.write_feather(table, folder / "b.feather", compression="lz4", chunksize=3)


def json_step_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes JSON lines in two files, the second compressed."""
    folder.mkdir(parents=True)
    ids, half = episode_numbers(rollouts), len(rollouts) // 2
    rows = step_table([r.columns for r in rollouts], episode_index=ids).to_pylist()
    for path, chosen in ((folder / "a.jsonl", ids < half), (folder / "b.jsonl.gz", ids >= half)):
        lines = [json.dumps(row) for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]
        with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
            file.write("\n".join(lines) + "\n")


def json_episode_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a JSON array, and the same rows as JSON lines."""
    folder.mkdir(parents=True)
    rows = episode_table([r.columns for r in rollouts], task=["one"] * len(rollouts)).to_pylist()
    (folder / "a.json").write_text(json.dumps(rows))
    (folder / "b.ndjson").write_text("\n".join(map(json.dumps, rows)))


def csv_step_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes compressed CSV. Of vectors, it holds only the first element."""
    folder.mkdir(parents=True)
    columns = {**_flat(rollouts), "episode_index": episode_numbers(rollouts)}
    values = [column.reshape(len(column), -1)[:, 0].tolist() for column in columns.values()]
    with gzip.open(folder / "a.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*values, strict=True)])


def tar_step_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes WebDataset, a sample a step."""
    samples = []
    for i, rollout in enumerate(rollouts):
        for t in range(len(rollout)):
            facts = {name: rollout.columns[name][t].item() for name in ("rewards", "terminated", "truncated")}
            arrays = {f"{name}.npy": rollout.columns[name][t] for name in ("observations", "actions")}
            samples.append({"json": {**facts, "episode_index": i}, **arrays})
    write_samples(folder / "a.tar", samples)


def tar_episode_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes WebDataset, a sample an episode, to two files."""
    samples = [{f"{name}.npy": values for name, values in r.columns.items()} for r in rollouts]
    for name in ("a.tar", "b.tar"):
        write_samples(folder / name, samples)


def lance_step_rows(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a Lance table in fragments of 20 rows, of which some were deleted."""
    import lance

    table = step_table([r.columns for r in rollouts], episode_index=episode_numbers(rollouts))
    extra = table.slice(0, 5).set_column(table.num_columns - 1, "episode_index", pa.array([-1] * 5))
    written = lance.write_dataset(pa.concat_tables([extra, table]), str(folder), max_rows_per_file=20)
    written.delete("episode_index < 0")


def text_and_images(folder: Path, rollouts: Sequence[Rollout]) -> None:
    texts = [[f"step {t} é" for t in range(len(r))] for r in rollouts]
    images = [[{"bytes": _png(2 * i), "path": None} for _ in range(len(r))] for i, r in enumerate(rollouts)]
    facts = {"text_observations": texts, "image_observations": images}
    write_episodes(folder / "a.parquet", rollouts, **facts)


def d4rl(folder: Path, rollouts: Sequence[Rollout]) -> None:
    extra = {"infos/qpos": np.arange(sum(map(len, rollouts)), dtype=np.float64), "metadata/policy": b"random"}
    write_d4rl(folder / "a.hdf5", rollouts, extra=extra, compression="gzip", chunks=True)
    write_d4rl(folder / "b.hdf5", rollouts, extra=extra)


def d4rl_without_timeouts(folder: Path, rollouts: Sequence[Rollout]) -> None:
    write_d4rl(folder / "a.hdf5", rollouts, timeouts=False, column_vectors=True)


def lerobot_v21(folder: Path, rollouts: Sequence[Rollout]) -> None:
    write_lerobot(folder, rollouts)


def lerobot_v3(folder: Path, rollouts: Sequence[Rollout]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        gear_data.convert(write_lerobot(work / "v2", rollouts), work / "gear", progress=False)
        gear_data.export(gear_data.open(work / "gear"), folder, format="lerobot", progress=False)


def minari(folder: Path, rollouts: Sequence[Rollout]) -> None:
    space = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-9.0] * 3, "high": [9.0] * 3}
    text = {"type": "Text", "max_length": 20, "min_length": 1, "charset": "abcdefgh "}
    facts = _minari_facts(rollouts, {"type": "Dict", "subspaces": {"state": space, "mission": text}}, "hdf5")
    (folder / "data").mkdir(parents=True)
    (folder / "data/metadata.json").write_text(json.dumps(facts))
    with h5py.File(folder / "data/main_data.hdf5", "w") as file:
        for i, rollout in enumerate(rollouts):
            group = file.create_group(f"episode_{i}")
            group.attrs.update({"id": i, "total_steps": len(rollout), "seed": i})
            columns = rollout.columns
            states = np.concatenate([columns["observations"], rollout.final[None]])
            group["observations/state"] = states
            group["observations/mission"] = ["go to a"] * len(states)
            group["actions"] = columns["actions"]
            group["rewards"] = columns["rewards"].astype(np.float64)
            group["terminations"], group["truncations"] = columns["terminated"], columns["truncated"]
            group["infos/energy"] = np.arange(len(states), dtype=np.float64)


def minari_arrow(folder: Path, rollouts: Sequence[Rollout]) -> None:
    space = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-9.0] * 3, "high": [9.0] * 3}
    for i, rollout in enumerate(rollouts):
        part = folder / f"data/{i}"
        part.mkdir(parents=True)
        (part / "metadata.json").write_text(json.dumps({"id": i, "total_steps": len(rollout), "seed": i}))
        columns = {name: np.concatenate([c, np.zeros_like(c[:1])]) for name, c in rollout.columns.items()}
        columns["observations"][-1] = rollout.final
        names = {"terminated": "terminations", "truncated": "truncations"}
        table = pa.table({names.get(n, n): _fixed(c) for n, c in columns.items()})
        with pa.OSFile(str(part / "part-0.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    (folder / "data/metadata.json").write_text(json.dumps(_minari_facts(rollouts, space, "arrow")))


def _minari_facts(rollouts: Sequence[Rollout], observations: dict[str, Any], data_format: str) -> dict[str, Any]:
    actions = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-9.0] * 2, "high": [9.0] * 2}
    return {
        "total_episodes": len(rollouts),
        "total_steps": sum(map(len, rollouts)),
        "data_format": data_format,
        "observation_space": json.dumps(observations),
        "action_space": json.dumps(actions),
        "dataset_id": "fuzz/fuzz-v0",
        "minari_version": "0.5.4",
    }


def _fixed(values: Any) -> pa.Array:
    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim == 2 else flat


def robomimic(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    with h5py.File(folder / "demo.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
        for i, rollout in enumerate(rollouts):
            group = file.create_group(f"data/demo_{3 * i}")
            group.attrs["num_samples"] = len(rollout)
            group["obs/state"], group["next_obs/state"] = rollout.columns["observations"], rollout.next_observations
            group["obs/image"] = np.zeros((len(rollout), 4, 4, 3), np.uint8)
            group["actions"], group["rewards"] = rollout.columns["actions"], rollout.columns["rewards"]
            group["dones"], group["states"] = rollout.columns["terminated"].astype(int), rollout.columns["observations"]
        file["mask/train"] = [b"demo_0", b"demo_3"]


def d3rlpy(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    with h5py.File(folder / "buffer.h5", "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"], file["version"] = len(rollouts), "2.1"
        for i, rollout in enumerate(rollouts):
            columns = rollout.columns
            file[f"observations_{i}"], file[f"actions_{i}"] = columns["observations"], columns["actions"]
            file[f"rewards_{i}"], file[f"terminated_{i}"] = columns["rewards"][:, None], columns["terminated"][-1]


def isaac_lab(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    with h5py.File(folder / "dataset.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(map(len, rollouts))
        data.attrs["env_args"] = json.dumps({"env_name": "Isaac-Lift-Cube-Franka-v0", "type": 2})
        for i, rollout in enumerate(rollouts):
            group = data.create_group(f"demo_{i}")
            group.attrs["num_samples"], group.attrs["seed"], group.attrs["success"] = len(rollout), i, bool(i % 2)
            states = rollout.columns["observations"]
            group.create_dataset("actions", data=rollout.columns["actions"], compression="gzip")
            group.create_dataset("obs/actions", data=np.zeros_like(rollout.columns["actions"]), compression="gzip")
            group.create_dataset("obs/state", data=states, compression="gzip")
            group["rewards"] = rollout.columns["rewards"]
            group.create_dataset("initial_state/articulation/robot/root_pose", data=states[:1], compression="gzip")
            group.create_dataset("states/articulation/robot/root_pose", data=states, compression="gzip")


def libero(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    for i, task in enumerate(("close the drawer", "open the drawer")):
        mine = rollouts[i * len(rollouts) // 2 : (i + 1) * len(rollouts) // 2]
        with h5py.File(folder / f"KITCHEN_SCENE{i}_{task.replace(' ', '_')}_demo.hdf5", "w") as file:
            data = file.create_group("data")
            data.attrs["total"], data.attrs["num_demos"] = sum(map(len, mine)), len(mine)
            data.attrs["problem_info"] = json.dumps({"domain_name": "robosuite", "language_instruction": task})
            data.attrs["bddl_file_content"] = f"(define (problem LIBERO)\n  (:language {task})\n)"
            data.attrs["macros_image_convention"] = "opengl"
            for number, rollout in enumerate(mine):
                group = data.create_group(f"demo_{number}")
                group.attrs["num_samples"], group.attrs["init_state"] = len(rollout), np.zeros(9 + i)
                group["obs/state"] = rollout.columns["observations"]
                group["obs/agentview_rgb"] = np.zeros((len(rollout), 4, 4, 3), np.uint8)
                group["actions"], group["rewards"] = rollout.columns["actions"], rollout.columns["rewards"]
                group["dones"] = rollout.columns["terminated"].astype(np.uint8)
                group["states"] = np.zeros((len(rollout), 9 + i))


def act(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a file per episode, with a camera of pixels and one of padded JPEG files."""
    folder.mkdir(parents=True)
    for i, rollout in enumerate(rollouts):
        frames = [_png(2 * t) for t in range(len(rollout))]
        padded = np.zeros((len(frames), max(map(len, frames)) + 3), np.uint8)
        for row, frame in zip(padded, frames, strict=True):
            row[: len(frame)] = np.frombuffer(frame, np.uint8)
        with h5py.File(folder / f"episode_{i}.hdf5", "w") as file:
            file.attrs["sim"], file.attrs["compress"] = True, True
            for name, values in rollout.columns.items():
                file[{"observations": "observations/state", "actions": "action"}.get(name, name)] = values
            file["observations/qpos"] = rollout.columns["observations"]
            file["observations/images/front"] = np.zeros((len(rollout), 4, 4, 3), np.uint8)
            file["observations/images/top"] = padded
            file["compress_len"] = np.array([[len(frame) for frame in frames]], np.float32)


def npz(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    flat = _flat(rollouts)
    arrays = {"terminals": flat.pop("terminated"), "timeouts": flat.pop("truncated"), **flat}
    arrays["next_observations"] = np.concatenate([rollout.next_observations for rollout in rollouts])
    np.savez_compressed(folder / "a.npz", **arrays)
    np.savez(folder / "b.npz", **arrays)


def npz_imitation(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    observations = [np.concatenate([r.columns["observations"], r.final[None]]) for r in rollouts]
    arrays = {
        "obs": np.concatenate(observations),
        "acts": _flat(rollouts)["actions"],
        "rews": _flat(rollouts)["rewards"],
        "indices": np.cumsum([len(rollout) for rollout in rollouts])[:-1],
        "terminal": np.array([rollout.columns["terminated"][-1] for rollout in rollouts]),
    }
    np.savez(folder / "final.npz", **arrays)


def ogbench(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes two files of T + 1 rows an episode; nothing terminates in this layout."""
    folder.mkdir(parents=True)
    parts: list[dict[str, Any]] = []
    for rollout in rollouts:
        part = {name: np.concatenate([c, np.zeros_like(c[:1])]) for name, c in rollout.columns.items()}
        part["observations"][-1] = rollout.final
        part["terminals"] = np.arange(len(rollout) + 1) == len(rollout)
        parts.append(part)
    names = ("observations", "actions", "rewards", "terminals")
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in names}
    state = {"qpos": arrays["observations"][:, :2], "qvel": arrays["observations"][:, 2:]}
    np.savez_compressed(folder / "cube-single-play-v0-000.npz", **arrays, **state)
    np.savez(folder / "cube-single-play-v0-001.npz", **arrays, **state)


def stable_baselines3(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a buffer of one environment, not full, to an archive and to HDF5."""
    folder.mkdir(parents=True)
    flat = {name: values[:, None] for name, values in _flat(rollouts).items()}
    arrays = {"dones": flat.pop("terminated") | flat["truncated"], "timeouts": flat.pop("truncated"), **flat}
    arrays["next_observations"] = np.concatenate([rollout.next_observations for rollout in rollouts])[:, None]
    steps = len(arrays["dones"])
    arrays = {name: np.concatenate([values, np.zeros_like(values[:3])]) for name, values in arrays.items()}
    np.savez_compressed(folder / "a.npz", pos=steps, full=False, **arrays)
    with h5py.File(folder / "b.h5", "w") as file:
        for name, values in {**arrays, "pos": steps, "full": False}.items():
            file[name] = values


def numpy_folder(folder: Path, rollouts: Sequence[Rollout]) -> None:
    folder.mkdir(parents=True)
    for name, values in _flat(rollouts).items():
        np.save(folder / f"{name}.npy", values)


def zarr_stores(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a folder of version 2 with filters, and an archive of version 3 with shards."""
    import numcodecs
    import zarr

    folder.mkdir(parents=True)
    names = {"observations": "state", "actions": "action", "rewards": "reward", "terminated": "terminal"}
    for version, name in ((2, "a.zarr"), (3, "b.zarr.zip")):
        store = zarr.storage.ZipStore(folder / name, mode="w") if name.endswith("zip") else folder / name
        group = zarr.open_group(store, mode="w", zarr_format=version)
        arrays = {f"data/{names.get(column, column)}": values for column, values in _flat(rollouts).items()}
        arrays["data/img"] = np.zeros((len(arrays["data/action"]), 4, 4, 3), np.uint8)
        arrays["meta/episode_ends"] = np.cumsum([len(rollout) for rollout in rollouts])
        for path, values in arrays.items():
            rows, layout = (7, *values.shape[1:]), {"shape": values.shape, "dtype": values.dtype}
            if version == 2:
                layout |= {"chunks": rows, "filters": [numcodecs.Shuffle(values.dtype.itemsize)]}
            else:
                layout |= {"chunks": (1, *values.shape[1:]), "shards": rows}
            group.create_array(path, **layout)[...] = values
        if name.endswith("zip"):
            store.close()


def torchrl(folder: Path, rollouts: Sequence[Rollout]) -> None:
    from tensordict import TensorDict

    flat = {name: values.copy() for name, values in _flat(rollouts).items()}
    steps = len(flat["rewards"])
    next_observations = np.concatenate([rollout.next_observations for rollout in rollouts])
    flags = {name: flat[name][:, None] for name in ("terminated", "truncated")}
    after = {"observation": next_observations, "reward": flat["rewards"][:, None], **flags}
    after["done"] = flags["terminated"] | flags["truncated"]
    first = {"observation": flat["observations"], "action": flat["actions"]}
    TensorDict({**first, "next": TensorDict(after, [steps])}, [steps]).memmap(str(folder))


def rlds(folder: Path, rollouts: Sequence[Rollout]) -> None:
    import tensorflow_datasets as tfds

    feature = tfds.features.FeaturesDict
    step = {
        "observation": feature({"state": tfds.features.Tensor(shape=(3,), dtype=np.float32)}),
        "action": tfds.features.Tensor(shape=(2,), dtype=np.float32),
        "reward": np.float32,
        **dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_),
    }

    def episodes() -> Any:
        for i, rollout in enumerate(rollouts):
            count = len(rollout)
            states = np.concatenate([rollout.columns["observations"], rollout.final[None]])
            actions = np.concatenate([rollout.columns["actions"], np.zeros((1, 2), np.float32)])
            rewards = [*rollout.columns["rewards"], np.float32(0)]
            ended = bool(rollout.columns["terminated"][-1])
            yield (
                i,
                {
                    "steps": [
                        {
                            "observation": {"state": states[t]},
                            "action": actions[t],
                            "reward": rewards[t],
                            "is_first": t == 0,
                            "is_last": t == count,
                            "is_terminal": t == count and ended,
                        }
                        for t in range(count + 1)
                    ]
                },
            )

    tfds.dataset_builders.store_as_tfds_dataset(
        name="fuzz",
        version="1.0.0",
        features=feature({"steps": tfds.features.Dataset(step)}),
        split_datasets={"train": list(episodes())},
        data_dir=str(folder),
    )


def gear(folder: Path, rollouts: Sequence[Rollout]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        text_and_images(work / "images", rollouts)
        gear_data.convert(work / "images", folder / "a", shard_bytes=1024, keep_encoded=True, progress=False)
        write_d4rl(work / "flat.hdf5", rollouts)
        gear_data.convert(work / "flat.hdf5", folder / "b", shard_bytes=1024, progress=False)


def tree_of_groups(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a group per episode, two levels deep, with T + 1 observations."""
    folder.mkdir(parents=True)
    with h5py.File(folder / "a.h5", "w") as file:
        for i, rollout in reversed(list(enumerate(rollouts))):
            group = file.create_group(f"robot/run_{i}")
            columns = dict(rollout.columns)
            group["obs"] = np.concatenate([columns.pop("observations"), rollout.final[None]])
            group["action"] = columns.pop("actions")
            group["reward"] = columns.pop("rewards")[:, None]
            for name, values in columns.items():
                group.create_dataset(name, data=values, chunks=True, compression="gzip")
            group.attrs["success"] = bool(i % 2)
        file["robot"].attrs["robot_type"] = "arm"


def tree_of_archives(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes an archive with a numbered array for each episode and column."""
    folder.mkdir(parents=True)
    arrays = {f"{name}_{i}": values for i, rollout in enumerate(rollouts) for name, values in rollout.columns.items()}
    np.savez(folder / "a.npz", **arrays)


def tree_with_ends(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes two files of flat arrays, and the ends of their episodes."""
    folder.mkdir(parents=True)
    for name in ("a.h5", "b.h5"):
        with h5py.File(folder / name, "w") as file:
            for column, values in _flat(rollouts).items():
                file[f"data/{column}"] = values
            file["meta/episode_ends"] = np.cumsum([len(rollout) for rollout in rollouts])


def by_writer(name: str) -> Maker:
    """Returns the maker of sources that a writer of `tests.support.makers.ideas` writes."""

    def make(folder: Path, rollouts: Sequence[Rollout]) -> None:
        folder.mkdir(parents=True)
        WRITERS[name].write(folder, [{**r.columns, "next_observations": r.next_observations} for r in rollouts])

    return make


#: Name -> maker. `gear` is opened and verified; the others are converted.
MAKERS: dict[str, Maker] = {
    "episode-rows": episode_rows,
    "step-rows": step_rows,
    "step-rows-saved": saved_step_rows,
    "episode-rows-arrow": arrow_episode_rows,
    "step-rows-json": json_step_rows,
    "episode-rows-json": json_episode_rows,
    "step-rows-csv": csv_step_rows,
    "step-rows-tar": tar_step_rows,
    "episode-rows-tar": tar_episode_rows,
    "step-rows-lance": lance_step_rows,
    "images": text_and_images,
    "journal": journals,
    "d4rl": d4rl,
    "d4rl-no-timeouts": d4rl_without_timeouts,
    "lerobot-v2.1": lerobot_v21,
    "lerobot-v3": lerobot_v3,
    "minari": minari,
    "minari-arrow": minari_arrow,
    "robomimic": robomimic,
    "d3rlpy": d3rlpy,
    "robomimic-isaac-lab": isaac_lab,
    "robomimic-libero": libero,
    "act": act,
    "npz": npz,
    "npz-imitation": npz_imitation,
    "npz-files": by_writer("npz, a file an episode"),
    "ogbench": ogbench,
    "stable-baselines3": stable_baselines3,
    "numpy": numpy_folder,
    "numpy-folders": by_writer("npy, a folder an episode"),
    "dqn-replay": dqn_replay,
    "calvin": calvin,
    "vd4rl": vd4rl,
    "torchrl": torchrl,
    "rlds": rlds,
    "zarr": zarr_stores,
    "tree": tree_of_groups,
    "tree-archives": tree_of_archives,
    "tree-ends": tree_with_ends,
    "tree-zarr": by_writer("Zarr, a group an episode"),
    "gear": gear,
}
