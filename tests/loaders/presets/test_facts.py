"""Tests of facts as keys of batches, against plain loops over the episode table."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.ingest.sources.tables.episode_columns import FACT_MARK
from gear_data.loaders.presets.registry import PRESETS
from tests.support.feed.arguments import grouped
from tests.support.feed.data import locomotion, nested

LENGTHS = [7, 1, 23, 12, 2, 20]
TASKS = ["pick", "place the cup", "pick", "öffnen", "", "pick"]
#: Facts of the source -> a value for each episode.
FACTS: dict[str, Any] = {
    "task": TASKS,
    "level": [3, 1, 4, 1, 5, 9],
    "score": [0.5, 1.5, -2.0, 3.25, 0.0, 7.0],
    "success": [True, False, True, True, False, False],
    "blob": [b"a", b"", b"\xff", b"bc", b"d", b"e"],
    "rating": [1.0, None, 2.0, None, 3.0, 4.0],
    "phrases": [["a", "b"], ["c"], ["d", "e", "f"], ["g"], ["h", "i"], ["j"]],
}


def write(folder, facts=FACTS, lengths=LENGTHS, seed=3):
    episodes = locomotion(lengths, seed=seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    columns = {name: nested(np.concatenate([e[name] for e in episodes]), offsets) for name in episodes[0]}
    table = pa.table({**columns, **facts})
    # Without the mark, lists would be steps.
    marked = [f.with_metadata(FACT_MARK) if f.name in facts else f for f in table.schema]
    pq.write_table(table.cast(pa.schema(marked)), folder.with_suffix(".parquet"))
    gear_data.convert(folder.with_suffix(".parquet"), folder, progress=False, format="episode-rows")
    return gear_data.open(folder)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("facts") / "d")


def expected(dataset, loader, step, name):
    """The fact of each window of a batch, from the episodes."""
    values = []
    for episode_id in loader.windows(step)["episode_id"].tolist():
        episode = dataset.episode(episode_id)
        values.append(episode.task if name == "task" else episode.facts[name])
    return values


def load(dataset, columns=("task", "level", "score", "success", "blob"), **options):
    return SequenceLoader(
        dataset, 8, **grouped(**{"context": 4, "seed": 2, "columns": list(columns), "framework": "numpy", **options})
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_batch_has_the_facts_of_its_episodes(preset, dataset):
    own = ["observations", "actions"] if PRESETS[preset].roles is None else []
    context = 1 if PRESETS[preset].transitions else 4
    loader = load(dataset, [*own, "task", "level", "score", "success", "blob"], preset=preset, context=context)
    for step, batch in enumerate(islice(loader, 3)):
        for name in ("task", "blob"):
            assert batch[name] == expected(dataset, loader, step, name)
        for name, dtype in (("level", np.int64), ("score", np.float64), ("success", np.bool_)):
            assert batch[name].dtype == dtype
            assert batch[name].tolist() == expected(dataset, loader, step, name)


def test_facts_leave_the_rest_of_a_batch_alone(dataset):
    plain, loader = (
        load(dataset, columns) for columns in (["observations", "rewards"], ["observations", "task", "rewards"])
    )
    assert plain.state_dict() == loader.state_dict()
    for batch, other in zip(islice(plain, 3), loader, strict=False):
        assert [*other] == [*batch, "task"]
        for key, value in batch.items():
            assert np.array_equal(value, other[key])
    assert load(dataset).spec()["facts"] == {n: n for n in ("task", "level", "score", "success", "blob")}


def test_columns_of_the_table_are_facts(dataset):
    loader = load(dataset, ["length", "return", "terminated", "facts.terminated", "facts.task", "source"])
    batch, ids = next(iter(loader)), loader.windows(0)["episode_id"]
    assert batch["length"].tolist() == [LENGTHS[i] for i in ids]
    assert batch["return"].tolist() == [dataset.episodes["return"][i] for i in ids.tolist()]
    assert batch["terminated"].shape == (8, 4)
    assert batch["facts.terminated"].tolist() == [dataset.episodes["terminated"][i] for i in ids.tolist()]
    assert batch["facts.task"] == [TASKS[i] for i in ids]
    # `source` numbers the datasets of a mixture.
    assert batch["facts.source"] == [dataset.episodes["source"][i] for i in ids.tolist()]


def test_a_key_of_the_preset_comes_before_a_fact(tmp_path):
    ds = write(tmp_path / "d", {"mask": [10, 11, 12, 13, 14, 15], "states": list("abcdef")})
    batch = next(iter(loader := load(ds, ["mask", "states"])))
    ids = loader.windows(0)["episode_id"].tolist()
    assert batch["mask"].dtype == np.bool_
    assert batch["facts.mask"].tolist() == [10 + i for i in ids]
    assert batch["states"] == ["abcdef"[i] for i in ids]
    batch = next(iter(load(ds, ["mask", "states"], preset="decision_transformer")))
    assert batch["mask"].tolist() == [10 + i for i in ids]
    assert (batch["states"].shape, batch["facts.states"]) == ((8, 4, 4), ["abcdef"[i] for i in ids])


def test_tensors(dataset):
    loader = load(dataset, framework="torch")
    batch = next(iter(loader))
    assert torch.equal(batch["level"], torch.tensor(expected(dataset, loader, 0, "level")))
    assert batch["score"].dtype == torch.float64
    assert batch["success"].dtype == torch.bool


def test_views_ranks_and_resuming(dataset):
    view = dataset.filter("length > 6")
    loader = load(view, prefetch=2)
    iterator = iter(loader)
    first, second = next(iterator), next(iterator)
    assert second["task"] == expected(dataset, loader, 1, "task")
    assert set(loader.windows(1)["episode_id"].tolist()) <= {0, 2, 3, 5}
    again = load(view)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again))["task"] == next(iterator)["task"]
    for rank in range(3):
        rows = slice(rank * 8 // 3, (rank + 1) * 8 // 3)
        own = next(iter(load(view, rank=rank, world_size=3)))
        assert own["task"] == first["task"][rows]
        assert own["level"].tolist() == first["level"][rows].tolist()


def words(texts):
    """Stands for a tokenizer: the letters of texts, without padding."""
    ids = [[ord(letter) for letter in text] for text in texts]
    return {"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]}


def test_decoders(dataset):
    loader = load(dataset, ["task", "blob"], decoders={"task": words, "blob": lambda blobs: [len(b) for b in blobs]})
    for step, batch in enumerate(islice(loader, 3)):
        texts = expected(dataset, loader, step, "task")
        ids = np.zeros((8, max(map(len, texts))), np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = [ord(letter) for letter in text]
        assert np.array_equal(batch["task.input_ids"], ids)
        assert np.array_equal(batch["task.attention_mask"], ids != 0)
        assert batch["blob"].tolist() == [len(blob) for blob in expected(dataset, loader, step, "blob")]
        assert "task" not in batch
    # 65 windows in batches of 64: rank 0 of 2 has no row of the last batch, and the same keys.
    options = {"sampler": "shuffle", "epochs": 1, "world_size": 2, "decoders": {"task": words}}
    one, two = (
        list(SequenceLoader(dataset, 64, columns=["task", "blob", "level"], context=4, rank=rank, **options))[-1]
        for rank in range(2)
    )
    assert [len(each["level"]) for each in (one, two)] == [0, 1]
    assert one.keys() == two.keys()
    assert (one["blob"], one["task.input_ids"].ndim, one["level"].dtype) == ([], 2, torch.int64)
    for name in ("level", "facts.task"):
        with pytest.raises(UnknownNameError, match="these are: blob, task"):
            load(dataset, ["task", "level", "blob"], decoders={name: words})


def test_mixtures(dataset, tmp_path):
    other = write(tmp_path / "e", {**FACTS, "task": list("uvwxyz"), "level": [9, 8, 7, 6, 5, 4]}, seed=8)
    for join in (False, True):
        loader = load(Mixture([dataset, other], join=join), ["observations", "task", "level"])
        sources = set()
        for step, batch in enumerate(islice(loader, 4)):
            windows = loader.windows(step)
            sources |= {*windows["dataset"].tolist()}
            pairs = list(zip(windows["dataset"].tolist(), windows["episode_id"].tolist(), strict=True))
            assert batch["task"] == [(other if source else dataset).episode(e).task for source, e in pairs]
            assert batch["level"].tolist() == [
                (other if source else dataset).episode(e).facts["level"] for source, e in pairs
            ]
        assert sources == {0, 1}
    unlike = write(tmp_path / "f", {"level": list("abcdef")}, seed=9)
    with pytest.raises(InvalidArgumentError, match=r"differ in text, bytes and facts.*'level', 'int64'.*'string'"):
        load(Mixture([dataset, unlike], join=True), ["observations", "level"])
    with pytest.raises(InvalidArgumentError, match="no value of the fact 'task'"):
        load(Mixture([dataset, unlike], join=True), ["observations", "task"])


def test_a_missing_value_is_an_error_that_names_an_episode(dataset):
    with pytest.raises(
        InvalidArgumentError, match=r"episode 1 has no value of the fact 'rating', and 1 more"
    ) as caught:
        load(dataset, ["rating"])
    assert caught.value.column == "rating"
    # The way out that the hint gives.
    (condition,) = re.findall(r"ds\.filter\('(.*)'\)", caught.value.hint)
    view = dataset.filter(condition)
    batch = next(iter(loader := load(view, ["rating"])))
    assert batch["rating"].dtype == np.float64
    assert batch["rating"].tolist() == expected(dataset, loader, 0, "rating")


def test_names_that_are_no_facts(dataset):
    with pytest.raises(UnknownNameError, match=r"did you mean 'level'\? known: .*, facts.terminated, .*, task"):
        load(dataset, ["levl"])
    with pytest.raises(UnknownNameError, match="unknown column 'shard'"):
        load(dataset, ["shard"])
    with pytest.raises(UnsupportedColumnError, match="list<"):
        load(dataset, ["phrases"])
    with pytest.raises(InvalidArgumentError, match="named twice"):
        load(dataset, ["task", "task"])
    with pytest.raises(InvalidArgumentError, match=r"would have the key 'facts\.source'"):
        load(dataset, ["source", "facts.source"])
