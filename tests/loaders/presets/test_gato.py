"""Texts and images as Gato's tokens, against a plain loop over episodes."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import gear_data
from gear_data import BatchOptions, Mixture, Pack, SequenceLoader, Weighted
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.decoding.images import ImageDecoder
from gear_data.loaders.presets.registry import GATO, resolve_preset
from tests.support.feed import presets as published
from tests.support.feed.batches import take

TASKS = ("ant", "atari", "babyai", "cartpole", "pendulum")
PATCH = 7
TOKENS = {"text": True, "patch": PATCH}
WORDS = ["go", "to", "the", "red", "blue", "green", "ball", "box", "key", "put", "next", "door", "pick", "up"]


def tokenize(texts: Sequence[str]) -> list[list[int]]:
    """Stands for a SentencePiece model: ids of pieces from 1 on."""
    return [[1 + WORDS.index(word) for word in text.split()] for text in texts]


def png(pixels: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def jat_episodes(task: str, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yields rows of the layout that a task of JAT has."""
    for length in (5, 1, 9, 3, 14, 6):
        row: dict[str, Any] = {}
        if task == "atari":
            frames = rng.integers(0, 256, (length, 20, 23), np.uint8)
            row["image_observations"] = [png(frame) for frame in frames]
        if task == "babyai":
            row["text_observations"] = [" ".join(rng.choice(WORDS, rng.integers(0, 6))) for _ in range(length)]
            row["discrete_observations"] = rng.integers(0, 11, (length, 12)).tolist()
        if task in ("ant", "cartpole", "pendulum"):
            width = {"ant": 27, "cartpole": 4, "pendulum": 3}[task]
            row["continuous_observations"] = rng.normal(0, 3, (length, width)).tolist()
        if task in ("ant", "pendulum"):
            row["continuous_actions"] = rng.normal(0, 1, (length, 8 if task == "ant" else 1)).tolist()
        else:
            row["discrete_actions"] = rng.integers(0, 4, length).tolist()
        yield {**row, "rewards": rng.normal(0, 1, length).tolist()}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, gear_data.Dataset]:
    """Returns small datasets of the layouts of JAT's tasks."""
    folder = tmp_path_factory.mktemp("jat")
    found = {}
    for number, task in enumerate(TASKS):
        (folder / task).mkdir()
        rows = list(jat_episodes(task, np.random.default_rng(number)))
        pq.write_table(pa.Table.from_pylist(rows), folder / task / "train.parquet")
        gear_data.convert(folder / task, folder / f"{task}.gear", progress=False)
        found[task] = gear_data.open(folder / f"{task}.gear")
    return found


def load(dataset: Any, batch_size: int = 9, tokens: Mapping[str, Any] = TOKENS, **options: Any) -> SequenceLoader:
    each = [part.dataset for part in dataset.components] if isinstance(dataset, Mixture) else [dataset]
    text = any("observations.text" in one.schema for one in each)
    defaults = {
        "preset": "gato", "framework": "numpy", "seed": 3, "decoders": {"observations.text": tokenize} if text else {},
        "batch": BatchOptions(preset_options={"tokens": dict(tokens)}),
    }  # fmt: skip
    return SequenceLoader(dataset, batch_size, **{**defaults, **options})


def plain(episode: Mapping[str, Any], start: int, length: int, patch: int = PATCH) -> tuple[Any, ...]:
    """Returns tokens, targets, patches and the mean positions of a window, step by step."""
    tokens: list[int] = []
    targets: list[bool] = []
    patches, positions = [], []
    for step in range(start, start + length):
        for name in sorted(name for name in episode if name.startswith("observations")):
            value = episode[name][step]
            if isinstance(value, str):
                tokens += tokenize([value])[0]
            elif value.dtype == np.uint8:
                height, width, channels = value.shape
                rows, columns = -(-height // patch), -(-width // patch)
                whole = np.zeros((rows * patch, columns * patch, 3), np.uint8)
                whole[:height, :width, :channels] = value
                for row, column in itertools.product(range(rows), range(columns)):
                    tokens.append(33025)
                    patches.append(whole[row * patch :, column * patch :][:patch, :patch])
                    bounds = [
                        (n * 128 // total, (n + 1) * 128 // total) for n, total in ((row, rows), (column, columns))
                    ]
                    positions.append([low + (high - low) // 2 for low, high in bounds])
            else:
                tokens += [int(v) if v.dtype.kind == "i" else published.gato_token(v) for v in np.ravel(value)]
        tokens.append(33024)
        targets += [False] * (len(tokens) - len(targets))
        action = np.ravel(episode["actions"][step])
        tokens += [int(v) if v.dtype.kind == "i" else published.gato_token(v) for v in action]
        targets += [True] * len(action)
    return tokens, targets, np.array(patches, np.uint8).reshape(-1, patch, patch, 3), np.reshape(positions, (-1, 2))


def windows_of(loader: SequenceLoader, datasets: Sequence[gear_data.Dataset], step: int) -> list[tuple[Any, ...]]:
    """Returns the plain loop's result for each window of a step."""
    table = loader.windows(step)
    names = ("dataset", "episode_id", "start", "length")
    return [
        plain(datasets[source].episode(episode), start, length)
        for source, episode, start, length in zip(*(table[name].tolist() for name in names), strict=True)
    ]


def check_lists(batch: Mapping[str, Any], expected: Sequence[tuple[Any, ...]]) -> None:
    assert len(batch["tokens"]) == len(expected)
    for row, (tokens, targets, patches, positions) in enumerate(expected):
        assert batch["tokens"][row].tolist() == tokens and batch["tokens"][row].dtype == np.int64
        assert batch["target_mask"][row].tolist() == targets
        assert np.array_equal(batch["patches"][row], patches) and batch["patches"][row].dtype == np.uint8
        assert np.array_equal(np.stack([batch["patch_rows"][row], batch["patch_columns"][row]], 1), positions)


@pytest.mark.parametrize("sampler", ["uniform", "shuffle"])
@pytest.mark.parametrize("join", [True, False])
def test_a_mixture_of_five_tasks_equals_the_plain_loop(datasets: Any, sampler: str, join: bool) -> None:
    mixture = Mixture([(each, 1 + number * join) for number, each in enumerate(datasets.values())], join=join)
    loader = load(mixture, 16, {**TOKENS, "sample": False}, context=4, sampler=sampler)
    seen = set()
    for step, batch in enumerate(itertools.islice(loader, 6)):
        seen |= {*batch["source"].tolist()}
        assert {*batch} == {"tokens", "target_mask", "patches", "patch_rows", "patch_columns", "valid_count", "source"}
        check_lists(batch, windows_of(loader, [*datasets.values()], step))
    assert seen == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_have_the_tokens_of_the_lists(datasets: Any, side: str) -> None:
    mixture = Mixture([*datasets.values()], join=True)
    options = {**TOKENS, "sample": False, "padding": 5, "ragged": False}
    loader = load(mixture, 10, context=3, batch=BatchOptions(preset_options={"tokens": options, "side": side}))
    expected = windows_of(loader, [*datasets.values()], 0)
    batch, width = loader.batch(0), max(len(each[0]) for each in expected)
    assert batch["tokens"].shape == batch["target_mask"].shape == batch["attention_mask"].shape == (10, width)
    for row, (tokens, targets, _, _) in enumerate(expected):
        span = slice(width - len(tokens), width) if side == "left" else slice(0, len(tokens))
        assert batch["tokens"][row, span].tolist() == tokens and batch["target_mask"][row, span].tolist() == targets
        assert batch["attention_mask"][row].sum() == len(tokens) and batch["attention_mask"][row, span].all()
        assert (np.delete(batch["tokens"][row], np.arange(width)[span]) == 5).all()
    assert np.array_equal(batch["patches"], np.concatenate([each[2] for each in expected]))
    assert (batch["tokens"] == 33025).sum() == len(batch["patches"]) == len(batch["patch_rows"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_of_one_task_have_a_fixed_width(datasets: Any, side: str) -> None:
    options = {"ragged": False, "patch": PATCH}
    batch = BatchOptions(preset_options={"tokens": options, "side": side})
    loader = load(datasets["atari"], 8, context=6, batch=batch)
    padded, lists = loader.batch(1), load(datasets["atari"], 8, {"patch": PATCH}, context=6).batch(1)
    width = 6 * (3 * 4 + 2)
    assert padded["tokens"].shape == (8, width)
    for row, own in enumerate(lists["tokens"]):
        span = slice(width - len(own), width) if side == "left" else slice(0, len(own))
        assert np.array_equal(padded["tokens"][row, span], own)
        assert np.array_equal(padded["target_mask"][row, span], lists["target_mask"][row])
        assert np.flatnonzero(padded["attention_mask"][row]).tolist() == list(range(span.start, span.stop))
    for key in ("patches", "patch_rows", "patch_columns"):
        assert np.array_equal(padded[key], np.concatenate(lists[key]))


def test_windows_of_a_map_style_dataset_have_their_own_patches(datasets: Any) -> None:
    def windows(ragged: bool) -> Any:
        options = {"patch": PATCH, "sample": False, "ragged": ragged}
        return datasets["atari"].to_torch_dataset(
            6, preset="gato", batch=BatchOptions(preset_options={"tokens": options})
        )

    for item in windows(ragged=True):
        assert len(item["patches"]) == len(item["patch_rows"]) == int((item["tokens"] == 33025).sum()) > 0
    with pytest.raises(InvalidArgumentError, match=r"(?s)patches of a batch are one array.*SequenceLoader"):
        windows(ragged=False)


@pytest.mark.parametrize("options", [{"context": 3}, {"pack": 160}, {"pack": 160, "sampler": Weighted("length")}])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_dataset_that_grows(datasets: Any, tmp_path: Path, options: dict[str, Any], mixed: bool) -> None:
    """From the step of a refresh on, the tokens are those of a new loader."""

    def record(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with gear_data.Writer(tmp_path / "ds", durability="os") as writer:
            for length in rng.integers(1, 9, 5):
                for _ in range(length):
                    text = " ".join(rng.choice(WORDS, rng.integers(0, 5)))
                    values = {"observations": rng.normal(size=3), "actions": rng.normal(size=2), "rewards": 0.0}
                    writer.append(**{**values, "observations.text": text})
                writer.end_episode(terminated=True)

    def fresh() -> SequenceLoader:
        ds: Any = gear_data.open(tmp_path / "ds")
        ds = Mixture([ds, datasets["pendulum"]], join=True) if mixed else ds
        return load(ds, 3, prefetch=0, **options)

    record(0)
    loader = fresh()
    batches = take(loader, 2)
    record(1)
    assert loader.refresh() == 2
    batches += take(loader, 2)
    newest, resumed = fresh(), fresh()
    same(batches[2:], [newest.batch(2), newest.batch(3)])
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same([resumed.batch(step) for step in range(4)], batches)


@pytest.mark.parametrize("tasks", [("babyai",), ("atari",), TASKS])
@pytest.mark.parametrize("sampler", ["uniform", "shuffle", "fifo"])
@pytest.mark.parametrize("context", [None, 5])
def test_packed_rows_have_whole_windows(datasets: Any, tasks: Any, sampler: str, context: int | None) -> None:
    chosen = [datasets[task] for task in tasks]
    room = 640
    source = chosen[0] if len(chosen) == 1 else Mixture(chosen, join=True)
    loader = load(source, 5, {**TOKENS, "sample": False}, pack=room, context=context, sampler=sampler)
    used = 0
    for step, batch in enumerate(itertools.islice(loader, 4)):
        table, bounds = loader.windows(step), batch["cu_seqlens"]
        ends, number, patches = np.zeros(5, np.int64), np.zeros(5, np.int64), []
        for row, (tokens, targets, own, _) in zip(table["row"].tolist(), windows_of(loader, chosen, step), strict=True):
            span = slice(int(ends[row]), int(ends[row]) + len(tokens))
            ends[row], number[row] = span.stop, number[row] + 1
            assert batch["tokens"][row, span].tolist() == tokens
            assert batch["target_mask"][row, span].tolist() == targets
            assert batch["segment_ids"][row, span].tolist() == [number[row]] * len(tokens)
            assert batch["position_ids"][row, span].tolist() == list(range(len(tokens)))
            assert row * room + span.stop in bounds
            patches.append(own)
        assert np.array_equal(batch["attention_mask"].sum(1), ends) and ends.max() <= room
        assert (batch["segment_ids"] > 0).sum() == ends.sum() and bounds[-1] == 5 * room
        assert np.array_equal(batch["patches"], np.concatenate(patches))
        used += ends.sum()
    assert used > 0.4 * 4 * 5 * room


def test_an_epoch_of_packed_rows_has_every_window(datasets: Any) -> None:
    loader = load(datasets["babyai"], 3, pack=300, sampler="shuffle", epochs=1)
    tables = [loader.windows(step) for step, _ in enumerate(loader)]
    assert sorted(each for table in tables for each in table["episode_id"].tolist()) == list(range(6))


@pytest.mark.parametrize("pack", [None, 700])
def test_ranks_states_and_workers_give_the_same_rows(datasets: Any, pack: int | None) -> None:
    mixture = Mixture([*datasets.values()], join=True)
    options = {"pack": pack, "context": 4, "tokens": {**TOKENS, "ragged": False}}

    def batches(**more: Any) -> list[dict[str, Any]]:
        return list(itertools.islice(load(mixture, 7, **{**options, **more}), 4))

    whole = batches(prefetch=0)
    for world in (2, 3):
        parts = [batches(rank=rank, world_size=world, prefetch=2) for rank in range(world)]
        for step, batch in enumerate(whole):
            for key in ("patches", "patch_rows", "patch_columns", "valid_count", "source"):
                assert np.array_equal(batch[key], np.concatenate([part[step][key] for part in parts])), key
            rows = [row[mask].tolist() for part in parts for row, mask in rows_of(part[step])]
            assert rows == [row[mask].tolist() for row, mask in rows_of(batch)]
    first, resumed = (load(mixture, 7, **options) for _ in range(2))
    list(itertools.islice(first, 2))
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    same(list(itertools.islice(resumed, 2)), whole[2:])
    same([pickle.loads(pickle.dumps(first)).batch(3)], whole[3:])


def same(batches: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    """Asserts that batches are equal, also in lists and dtypes."""
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for key in batch:
            mine, yours = (each if isinstance(each, list) else [each] for each in (batch[key], other[key]))
            assert len(mine) == len(yours), key
            for one, two in zip(mine, yours, strict=True):
                left, right = np.asarray(one), np.asarray(two)
                assert left.dtype == right.dtype and np.array_equal(left, right), key


def rows_of(batch: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(batch["tokens"], batch["attention_mask"], strict=True))


@pytest.mark.processes
def test_workers_give_the_same_batches(datasets: Any) -> None:
    mixture = Mixture([*datasets.values()], join=True)
    for options in ({}, {"pack": 700}):
        expected = take(load(mixture, 7, framework="torch", context=4, steps=4, **options), 4)
        own = load(mixture, 7, framework="torch", context=4, steps=4, **options)
        same(list(DataLoader(own, batch_size=None, num_workers=2)), expected)


def test_fewer_rows_than_ranks(datasets: Any) -> None:
    mixture = Mixture([*datasets.values()], join=True)
    for options in ({}, {"ragged": False}):
        tokens = {**TOKENS, **options}
        batches = [load(mixture, 4, tokens, rank=rank, world_size=4).batch(0) for rank in range(4)]
        whole = load(mixture, 4, tokens).batch(0)
        assert [len(batch["tokens"]) for batch in batches] == [1, 1, 1, 1]
        assert sum(map(len, whole["patches"])) == sum(map(len, [b for batch in batches for b in batch["patches"]]))
    last = [
        load(datasets["babyai"], 4, rank=rank, world_size=4, sampler="fifo", epochs=1, context=4) for rank in range(4)
    ]
    assert sorted(len(list(each)[-1]["tokens"]) for each in last) == [0, 0, 1, 1]


def test_positions_are_drawn_from_their_intervals(datasets: Any) -> None:
    """As in training: uniformly, and independently for each patch."""
    loader = load(datasets["atari"], 200, context=8)
    means = load(datasets["atari"], 200, {**TOKENS, "sample": False}, context=8).batch(0)
    batch = loader.batch(0)
    for key, total in (("patch_rows", 3), ("patch_columns", 4)):
        mean, drawn = np.concatenate(means[key]), np.concatenate(batch[key])
        for number in range(total):
            low, high = number * 128 // total, (number + 1) * 128 // total
            own = drawn[mean == low + (high - low) // 2]
            assert own.min() >= low and own.max() < high and {*own} == {*range(low, high)}
            assert abs(own.mean() - (low + high - 1) / 2) < 1.1
    rows, columns = np.concatenate(batch["patch_rows"]), np.concatenate(batch["patch_columns"])
    means_of = [np.concatenate(means[key]) for key in ("patch_rows", "patch_columns")]
    left = np.corrcoef(rows - means_of[0], columns - means_of[1])[0, 1]
    assert abs(left) < 0.05
    assert not np.array_equal(np.concatenate(loader.batch(1)["patch_rows"])[:50], rows[:50])
    same([loader.batch(0)], [batch])


def test_a_small_model_trains_on_the_mixture(datasets: Any) -> None:
    """Tokens, patches and positions have all that a model needs."""
    torch.manual_seed(0)
    mixture = Mixture([*datasets.values()], join=True)
    loader = load(mixture, 10, {**TOKENS, "ragged": False}, framework="torch", context=3)
    width = 16
    embed, patches = torch.nn.Embedding(33026, width), torch.nn.Linear(PATCH * PATCH * 3, width)
    rows, columns = torch.nn.Embedding(128, width), torch.nn.Embedding(128, width)
    mix, head = torch.nn.GRU(width, width, batch_first=True), torch.nn.Linear(width, 33024)
    modules = torch.nn.ModuleList([embed, patches, rows, columns, mix, head])
    optimizer = torch.optim.Adam(modules.parameters(), 0.02)
    losses = []
    for batch in itertools.islice(loader, 12):
        tokens, pixels = batch["tokens"], batch["patches"].flatten(1) / 127.5 - 1
        inputs = embed(tokens)
        inputs[tokens == 33025] = patches(pixels / 4) + rows(batch["patch_rows"]) + columns(batch["patch_columns"])
        hidden, _ = mix(inputs)
        wanted = batch["target_mask"][:, 1:]
        loss = torch.nn.functional.cross_entropy(head(hidden[:, :-1][wanted]), tokens[:, 1:][wanted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses


class Bert:
    """Returns what HuggingFace's tokenizers return."""

    def __call__(self, texts: list[str]) -> dict[str, Any]:
        ids = tokenize(texts)
        longest = max(map(len, ids), default=0)
        return {
            "input_ids": np.array([each + [0] * (longest - len(each)) for each in ids]),
            "token_type_ids": np.zeros((len(texts), longest), np.int64),
            "attention_mask": np.array([[1] * len(each) + [0] * (longest - len(each)) for each in ids]),
        }


def test_a_tokenizer_may_return_a_mapping_or_an_array(datasets: Any) -> None:
    expected = load(datasets["babyai"]).batch(0)
    for pack in (None, 400):
        mapped = load(datasets["babyai"], decoders={"observations.text": Bert()}, pack=pack).batch(0)
        same([mapped], [load(datasets["babyai"], pack=pack).batch(0)])
    one = load(datasets["babyai"], decoders={"observations.text": lambda texts: np.full((len(texts), 2), 7)}).batch(0)
    lengths = load(datasets["babyai"]).windows(0)["length"].tolist()
    assert [len(row) for row in one["tokens"]] == [n * (12 + 2 + 2) for n in lengths]
    moved = load(datasets["babyai"], tokens={**TOKENS, "text_first": 100}).batch(0)
    for row, own in zip(moved["tokens"], expected["tokens"], strict=True):
        assert {*np.unique(row - own)} <= {0, 100} and len(row) == len(own)


@pytest.mark.parametrize("channels", ["first", "last", None])
def test_images_of_other_forms(make_dataset: Any, channels: str | None) -> None:
    """Stacks of four frames with channels first, or grey images without an axis of channels."""
    rng = np.random.default_rng(0)
    shape = {"first": (4, 8, 12), "last": (8, 12, 4), None: (8, 12)}[channels]
    frames = [rng.integers(0, 256, (n, *shape), np.uint8) for n in (4, 6)]
    ds = make_dataset(
        [{"observations.image": f, "actions": np.zeros(len(f), np.int64), "rewards": np.zeros(len(f))} for f in frames]
    )
    loader = load(ds, 6, {"patch": 4, "channels": 4}, context=3)
    batch, table = loader.batch(0), loader.windows(0)
    for row, (episode, start, n) in enumerate(
        zip(*(table[name].tolist() for name in ("episode_id", "start", "length")), strict=True)
    ):
        own = frames[episode][start : start + n]
        own = own.transpose(0, 2, 3, 1) if channels == "first" else own.reshape(n, 8, 12, -1)
        cut = [own[k, r : r + 4, c : c + 4] for k in range(n) for r in (0, 4) for c in (0, 4, 8)]
        depth = own.shape[3]
        assert np.array_equal(batch["patches"][row][..., :depth], cut) and not batch["patches"][row][..., depth:].any()
        assert batch["tokens"][row].tolist() == ([33025] * 6 + [33024, 0]) * n


def test_encoded_images_are_the_same_patches(tmp_path: Path) -> None:
    rows = list(jat_episodes("atari", np.random.default_rng(1)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    for name, keep in (("pixels", False), ("encoded", True)):
        gear_data.convert(tmp_path / "train.parquet", tmp_path / name, keep_encoded=keep, progress=False)
    pixels = load(gear_data.open(tmp_path / "pixels")).batch(0)
    decoder = {"observations.image": ImageDecoder(mode="L", channels="last")}
    same([load(gear_data.open(tmp_path / "encoded"), decoders=decoder).batch(0)], [pixels])
    with pytest.raises(InvalidArgumentError, match="has no decoder") as missing:
        load(gear_data.open(tmp_path / "encoded"))
    assert missing.value.column == "observations.image" and "ImageDecoder" in (missing.value.hint or "")


def test_without_the_options_nothing_changes(datasets: Any) -> None:
    """Texts and images stay beside the tokens, and older states name the same format."""
    assert {*GATO.to_json()["tokens"]} == {
        "bins", "mu", "max_value", "companded", "first", "separator", "ragged", "padding",
    }  # fmt: skip
    assert resolve_preset("gato", {"tokens": {"patch": 16}}).to_json()["tokens"]["patch"] == 16
    batch = load(datasets["babyai"], tokens={}, decoders={}).batch(0)
    assert {*batch} == {"tokens", "target_mask", "observations.text", "valid_count"}
    assert {*load(datasets["atari"], tokens={}, decoders={}).batch(0)} == {
        "tokens", "target_mask", "observations.image", "valid_count",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "options", "match", "column"),
    [
        (["babyai"], {"decoders": {}}, "has no decoder", "observations.text"),
        (["babyai"], {"decoders": {"observations.text": lambda texts: [[32000] for _ in texts]}},
         "begin at 32000", "observations.text"),
        (["babyai"], {"decoders": {"observations.text": lambda texts: [[0.5] for _ in texts]}},
         "are integers", "observations.text"),
        (["babyai"], {"decoders": {"observations.text": lambda texts: {"ids": [[1] for _ in texts]}}},
         "no input_ids", "observations.text"),
        (["babyai"], {"pack": Pack(400, split=True)}, "leave split out|unlike numbers of tokens", None),
        (["babyai"], {"pack": 60}, r"episode 4 has \d+ tokens, and a row has pack=60 tokens", None),
        (["babyai"], {"pack": 60, "context": 9}, "a window of episode", None),
        (["babyai"], {"pack": Pack(10, cut=True)}, "does not fit", None),
        (["atari"], {"normalize": {"observations.image": (0.0, 1.0)}}, "images of uint8", "observations.image"),
        (["atari", "ant"], {"tokens": {"text": True}}, "beside the tokens", "observations.image"),
        (["atari", "ant"], {"pack": 700, "columns": ["rewards"]}, "only tokens", "rewards"),
        (["atari", "ant"], {"augment": True}, "no images", None),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(datasets: Any, tasks: Any, options: dict[str, Any], match: str, column: Any) -> None:
    chosen = [datasets[task] for task in tasks]
    source = chosen[0] if len(chosen) == 1 else Mixture(chosen, join=True)
    if options.pop("augment", None):
        tokens = {"tokens": TOKENS}
        options["batch"] = BatchOptions(preset_options=tokens, augment=gear_data.RandomShift(2))
    with pytest.raises(InvalidArgumentError, match=match) as error:
        load(source, **{"context": None, **options}).batch(0)
    assert error.value.column == column


def test_no_value_has_the_token_of_a_separator_or_a_patch(datasets: Any) -> None:
    """The separator and patches have the tokens after 1,024 bins."""
    for tokens, found in (
        ({"bins": 2048}, "'separator' is 33024"),
        ({"bins": 2048, "separator": 34048, "patch": PATCH}, "'image' is 33025"),
        ({"first": 33000}, "'separator' is 33024"),
    ):
        with pytest.raises(InvalidArgumentError, match=found) as error:
            load(datasets["ant"], tokens=tokens)
        assert error.value.column in ("observations", "actions")
        advice = json.loads("{" + (error.value.hint or "").rpartition("{")[2].rstrip("}").replace("'", '"') + "}")
        load(datasets["ant"], tokens={**tokens, **advice})
    steps = load(datasets["ant"], tokens={"bins": 2048, "separator": 34048}).batch(0)["tokens"]
    # 27 observations, a separator and 8 actions are 36 tokens.
    assert all((row == 34048).sum() * 36 == len(row) for row in steps)
    load(datasets["babyai"], tokens={"bins": 2048}, decoders={})  # integers have no bins


def test_other_tokens_of_two_datasets_are_refused(datasets: Any) -> None:
    options = [{"preset_options": {"tokens": {**TOKENS, "bins": bins}}} for bins in (256, 1024)]
    mixture = Mixture([(datasets["ant"], 1, options[0]), (datasets["pendulum"], 1, options[1])], join=True)
    with pytest.raises(InvalidArgumentError, match="other options of preset 'gato'"):
        load(mixture)
    with pytest.raises(InvalidArgumentError, match="patch"):
        resolve_preset("gato", {"tokens": {"patch": -1}})


def test_columns_of_all_datasets_stay_beside_the_tokens(datasets: Any) -> None:
    mixture = Mixture([*datasets.values()], join=True)
    loader = load(mixture, columns=["rewards", "length"], context=3)
    batch, table = loader.batch(0), loader.windows(0)
    names = ("dataset", "episode_id", "start", "length")
    for row, (source, episode, start, length) in enumerate(zip(*(table[n].tolist() for n in names), strict=True)):
        own = [*datasets.values()][source].episode(episode)
        assert np.array_equal(batch["rewards"][row], own["rewards"][start : start + length])
        assert batch["length"][row] == len(own["rewards"])


def test_the_tasks_of_the_jat_collection(shared_data: Path, tmp_path: Path) -> None:
    names = ("atari-pong", "babyai", "cartpole", "mujoco-ant", "pendulum")
    found = []
    for name in names:
        gear_data.convert(shared_data / "gato_jat" / name, tmp_path / name, progress=False)
        found.append(gear_data.open(tmp_path / name))
    words: dict[str, int] = {}

    def ids(texts: Sequence[str]) -> list[list[int]]:
        return [[words.setdefault(word, len(words)) for word in text.split()] for text in texts]

    tokens = {"text": True, "patch": 14, "sample": False}
    loader = load(Mixture(found, join=True), 10, tokens, context=3, decoders={"observations.text": ids})
    batch, table = loader.batch(0), loader.windows(0)
    for row, (source, length) in enumerate(zip(table["dataset"].tolist(), table["length"].tolist(), strict=True)):
        fixed = {0: 36 + 2, 2: 4 + 2, 3: 105 + 1 + 8, 4: 3 + 2}.get(source)
        assert fixed is None or len(batch["tokens"][row]) == fixed * length
        assert len(batch["patches"][row]) == (36 * length if source == 0 else 0)
    assert {*table["dataset"].tolist()} == {0, 1, 2, 3, 4}
