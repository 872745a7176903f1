"""Tests of facts as keys of batches, against plain loops over the episode table."""

from __future__ import annotations

import pickle
import re
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.kernels import cpu
from gear_data.loaders.presets.registry import PRESETS
from gear_data.storage.episode_tables import FACT_MARK
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


def test_a_preset_has_facts_beside_its_columns(dataset):
    """`columns` of a preset with all columns would choose among them."""
    facts = {"task": "task", "level": "rank", "absent": "x", "success": ""}
    options = {"preset": "lerobot", "preset_options": {"facts": facts}, "columns": None}
    loader = SequenceLoader(dataset, 8, **grouped(context=4, seed=2, framework="numpy", **options))
    batch = loader.batch(1)
    assert batch["task"] == expected(dataset, loader, 1, "task")
    assert batch["rank"].tolist() == expected(dataset, loader, 1, "level")
    assert {"observation.state", "action", "action_is_pad"} <= {*batch} and not {"x", "success", ""} & {*batch}
    options["decoders"] = {"task": lambda texts: [len(text) for text in texts]}
    decoded = SequenceLoader(dataset, 8, **grouped(context=4, seed=2, framework="numpy", **options))
    assert decoded.batch(1)["task"].tolist() == [len(text) for text in batch["task"]]


@pytest.mark.parametrize(
    ("preset", "key"), [("openpi", "prompt"), ("octo", "task.language_instruction"), ("groot", "language")]
)
def test_policies_take_the_task(dataset, preset, key):
    loader = SequenceLoader(dataset, 8, **grouped(context=4, seed=2, framework="numpy", preset=preset))
    for step, batch in enumerate(islice(loader, 3)):
        tasks = expected(dataset, loader, step, "task")
        assert batch[key] == tasks
        if preset == "octo":
            assert batch["task.pad_mask_dict.language_instruction"].tolist() == [text != "" for text in tasks]
            assert gear_data.nested_batch(batch)["task"]["language_instruction"] == tasks
    without = {"preset_options": {"facts": {"task": ""}}}
    loader = SequenceLoader(dataset, 8, **grouped(context=4, framework="numpy", preset=preset, **without))
    assert key not in loader.batch(0)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_octo_keeps_the_goal_images_or_the_text(dataset, keep):
    """As `delete_task_conditioning` of octo-models/octo: a row without a text keeps its images."""
    options = {"context": 4, "seed": 2, "framework": "numpy", "preset": "octo"}
    goals = {"goals": "uniform", "keep_image_prob": keep}
    loader = SequenceLoader(dataset, 60, **grouped(**options, preset_options=goals))
    plain = SequenceLoader(dataset, 60, **grouped(**options))
    kept = []
    for step, batch in enumerate(islice(loader, 4)):
        tasks, masks = expected(dataset, loader, step, "task"), batch["task.pad_mask_dict.language_instruction"]
        for text, own, mask in zip(tasks, batch["task.language_instruction"], masks, strict=True):
            assert own == (text if mask else "") and mask == bool(own)
            if text:
                kept.append(not mask)
        assert batch["task.image_primary"].shape == (60, 256, 256, 3)
        assert not batch["task.pad_mask_dict.image_primary"].any() and batch["task.pad_mask_dict.proprio"].all()
        # Without goal images the goal is the last step, and the actions up to it count.
        last = np.array([LENGTHS[episode] - 1 for episode in loader.windows(step)["episode_id"].tolist()])
        assert np.array_equal(batch["task.timestep"][masks], last[masks])
        without = plain.batch(step)
        for key in ("observation.task_completed", "action_pad_mask"):
            assert np.array_equal(batch[key][masks], without[key][masks])
        assert "task.last_timestep" not in batch
    assert abs(np.mean(kept) - keep) < 0.15 and (0 < keep < 1) == (len({*kept}) == 2)
    parts = [
        SequenceLoader(dataset, 60, **grouped(**options, preset_options=goals, rank=r, world_size=2)) for r in (0, 1)
    ]
    joined = [text for part in parts for text in part.batch(1)["task.language_instruction"]]
    assert joined == loader.batch(1)["task.language_instruction"]
    with pytest.raises(InvalidArgumentError, match="some rows have no text"):
        decoders = {"task.language_instruction": lambda texts: [len(text) for text in texts]}
        SequenceLoader(dataset, 8, **grouped(**options, preset_options=goals, decoders=decoders))


def test_keys_that_no_dictionary_holds():
    with pytest.raises(InvalidArgumentError, match=r"'task' and 'task\.ids'"):
        gear_data.nested_batch({"task": [""], "task.ids": np.zeros(1), "other": 1})
    assert gear_data.nested_batch({"a.b.c": 1, "a.b.d": 2, "a.e": 3, "f": 4}) == {
        "a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4,
    }  # fmt: skip


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


def test_keys_that_a_preset_or_packing_makes_come_before_facts(tmp_path):
    """Tokens replaced facts of their names; keys of packed rows were an error of the first batch."""
    names = ["tokens", "target_mask", "patches", "loss_weight", "segment_ids", "position_ids", "max_seqlen"]
    ds = write(tmp_path / "d", {name: [10 * i + k for i in range(6)] for k, name in enumerate(names)})
    packed = {"segment_ids", "position_ids", "max_seqlen"}
    for columns, own, options in (
        (names, set(), {}),
        (names, {"tokens", "target_mask", "segment_ids"}, {"preset": "gato"}),
        (["actions", *names], packed, {"context": None, "pack": 32}),
        (names, {"tokens", "target_mask"} | packed, {"context": None, "pack": 320, "preset": "gato"}),
    ):
        batch, ids = next(iter(loader := load(ds, columns, **options))), loader.windows(0)["episode_id"]
        for k, name in enumerate(names):
            assert batch[f"facts.{name}" if name in own else name].tolist() == (10 * ids + k).tolist()
    with pytest.raises(InvalidArgumentError, match="two arrays of the batch would have the key 'tokens'"):
        load(ds, [], preset="gato", choose={"tokens": ["length"]})


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


#: The table's rows, with one phrase missing and one episode that has none.
PHRASES = {
    "one": ["a", "b", "c", "d", "e", None],
    "two": [None, "f", "h", "i", "j", None],
    "several": [["k", "l"], [], ["m"], None, ["n", "o", "p"], ["q", None]],
    "number": [1, 2, 3, 4, 5, 6],
    "other": [10, 20, 30, 40, 50, 60],
}


@pytest.fixture(scope="module")
def phrases(tmp_path_factory):
    return write(tmp_path_factory.mktemp("phrases") / "d", PHRASES)


def candidates(episode_id, names):
    values = [PHRASES[name][episode_id] for name in names]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if item is not None]


@pytest.mark.parametrize("preset", PRESETS)
def test_one_of_several_facts(preset, phrases):
    names = ["one", "two", "several"]
    choose = {"instruction": names, "same": names, "value": ["number", "other"], "part": "several"}
    view = phrases.filter("array_length(several) > 0")
    options = {"preset": preset, "context": 1 if PRESETS[preset].transitions else 4, "choose": choose}
    own = ["observations", "actions"] if PRESETS[preset].roles is None else []
    loader = load(view, own, sampler=gear_data.Uniform(by="episode"), **options)
    seen, differ = {key: set() for key in choose}, 0
    for step, batch in enumerate(islice(loader, 40)):
        for row, episode_id in enumerate(loader.windows(step)["episode_id"].tolist()):
            for key in choose:
                seen[key].add((episode_id, batch[key][row]))
            differ += batch["instruction"][row] != batch["same"][row]
        assert batch["value"].dtype == np.int64
    # Each window has one of its episode's values, and each value occurs.
    for key, listed in choose.items():
        listed = [listed] if isinstance(listed, str) else listed
        assert seen[key] == {(e, value) for e in (0, 2, 4, 5) for value in candidates(e, listed)}
    assert differ > 40  # keys are drawn independently
    assert loader.spec()["choose"] == {**choose, "part": ["several"]}


def test_draws_depend_on_seed_step_and_row_only(phrases):
    options = {"choose": {"text": ["one", "two"]}, "context": 4}
    view = phrases.filter("episode_id < 5")
    loader = load(view, [], prefetch=3, **options)
    batches = list(islice(loader, 3))
    # By hand, from the bits of the counter-based generator: row i of the batch, and the episode's number of values.
    for step, batch in enumerate(batches):
        seed = np.uint64(cpu.random.word64(np.uint64(2), 13, 0, xxhash.xxh32_intdigest(b"text"), 0))
        ids = loader.windows(step)["episode_id"].tolist()
        values = [candidates(e, ["one", "two"]) for e in ids]
        assert batch["text"] == [
            each[int(cpu.random.below(seed, 13, step, row, len(each)))] for row, each in enumerate(values)
        ]
    again = load(view, [], prefetch=0, **options)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again))["text"] == loader.batch(3)["text"]
    for rank in range(3):
        own = load(view, [], rank=rank, world_size=3, **options).batch(2)
        assert own["text"] == batches[2]["text"][rank * 8 // 3 : (rank + 1) * 8 // 3]
    # With 4,000 rows, each of two values has its half to within five standard deviations.
    large = SequenceLoader(phrases.select([2]), 4000, columns=[], framework="numpy", **options)
    assert abs(large.batch(0)["text"].count("c") - 2000) < 5 * 32
    assert load(view, [], **{**options, "seed": 3}).batch(0)["text"] != batches[0]["text"]


def test_a_rank_without_rows_decodes_values_of_the_view(phrases):
    """37 windows in batches of 36: rank 0 of 2 has no row of the last batch. Episode 0 has no value."""
    view = phrases.filter("two is not null and episode_id > 1")
    options = {"sampler": "shuffle", "epochs": 1, "world_size": 2, "decoders": {"two": words, "text": words}}
    ranks = [
        list(SequenceLoader(view, 36, columns=["two"], choose={"text": ["two", "one"]}, rank=rank, **options))[-1]
        for rank in range(2)
    ]
    for key in ("two.input_ids", "text.attention_mask"):
        assert [len(batch[key]) for batch in ranks] == [0, 1]


@pytest.mark.processes
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_workers(start, phrases):
    options = {"choose": {"text": ["one", "two"]}, "decoders": {"one": words}, "framework": "torch", "steps": 5}
    inline, loader = (load(phrases.filter("episode_id < 5"), ["one", "number", "rewards"], **options) for _ in range(2))
    workers = loader.dataloader(2, multiprocessing_context=start)
    for batch, other in zip(inline, workers, strict=True):
        assert batch.keys() == other.keys()
        assert batch["text"] == other["text"]
        for key in ("number", "one.input_ids"):
            assert torch.equal(batch[key], other[key])


def test_choices_in_mixtures_and_through_decoders(phrases, dataset):
    two = Mixture(
        [
            (phrases.filter("episode_id < 5"), 1, {"choose": {"text": ["one", "two"]}}),
            (dataset, 1, {"choose": {"text": "phrases"}}),
        ],
        join=True,
    )
    decoded = load(two, ["observations"], decoders={"text": words})
    loader = load(two, ["observations"])
    for step, batch in enumerate(islice(loader, 3)):
        windows = loader.windows(step)
        for text, source, episode_id in zip(
            batch["text"], windows["dataset"], windows["episode_id"].tolist(), strict=True
        ):
            assert text in (FACTS["phrases"][episode_id] if source else candidates(episode_id, ["one", "two"]))
        assert decoded.batch(step)["text.input_ids"][:, 0].tolist() == [ord(text) for text in batch["text"]]


def test_one_dataset_of_a_mixture_has_the_fact_and_another_draws(phrases, dataset):
    two = Mixture(
        [(dataset, 1), (phrases, 1, {"columns": ["observations"], "choose": {"task": ["number", "other"]}})], join=True
    )
    options = {"decoders": {"task": words}}
    with pytest.raises(InvalidArgumentError, match="differ in text, bytes and facts"):
        load(two, ["observations", "task"], **options)
    choose = {"choose": {"level": ["number", "other"]}, "columns": ["observations"]}
    loader = load(Mixture([(dataset, 1), (phrases, 1, choose)], join=True), ["observations", "level"])
    drawn = set()
    for step, batch in enumerate(islice(loader, 5)):
        windows = loader.windows(step)
        for value, source, episode in zip(
            batch["level"], windows["dataset"], windows["episode_id"].tolist(), strict=True
        ):
            assert value in (candidates(episode, ["number", "other"]) if source else [FACTS["level"][episode]])
            drawn |= {value >= 10} if source else set()
    assert drawn == {True, False}


def test_one_of_several_columns_of_text(tmp_path):
    names = ["first", "second", "third"]
    ds = write(tmp_path / "d", {})
    table = pq.read_table((tmp_path / "d").with_suffix(".parquet"))
    for name in names:
        texts = [[f"{name} {e} {t}" for t in range(length)] for e, length in enumerate(LENGTHS)]
        table = table.append_column(name, pa.array(texts))
    pq.write_table(table, tmp_path / "e.parquet")
    gear_data.convert(tmp_path / "e.parquet", tmp_path / "e", progress=False, format="episode-rows")
    ds = gear_data.open(tmp_path / "e")
    choose = {"text": names}
    loader, decoded = load(ds, [], choose=choose), load(ds, [], choose=choose, decoders={"text": words})
    seen = set()
    for step, batch in enumerate(islice(loader, 5)):
        windows = zip(*(loader.windows(step)[key].tolist() for key in ("episode_id", "start", "length")), strict=True)
        lists = [
            {name: [f"{name} {e} {t}" for t in range(first, first + n)] for name in names} for e, first, n in windows
        ]
        drawn = [value[0].split()[0] for value in batch["text"]]
        seen |= {*drawn}
        assert batch["text"] == [each[name] for each, name in zip(lists, drawn, strict=True)]
        ids = decoded.batch(step)["text.input_ids"]
        assert ids[:, 0, 0].tolist() == [ord(name[0]) for name in drawn]
    assert seen == {*names}
    assert "first" not in batch
    first_steps = load(ds, [], preset="lerobot", choose=choose).batch(0)["text"]
    assert first_steps == [texts[0] for texts in load(ds, [], choose=choose).batch(0)["text"]]


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        (["one"], InvalidArgumentError, "choose maps keys"),
        ({"k": []}, InvalidArgumentError, "choose maps keys"),
        ({"k": ["one", "one"]}, InvalidArgumentError, "a name twice"),
        ({"k": ["one", "on"]}, UnknownNameError, "did you mean 'one'"),
        ({"k": ["one", "number"]}, InvalidArgumentError, "several dtypes: .*'one': 'string', 'number': 'int64'"),
        ({"k": ["one", "rewards"]}, InvalidArgumentError, "rewards is a column, one a fact"),
        ({"mask": ["one", "number"]}, InvalidArgumentError, "several dtypes"),
        ({"mask": ["number", "other"]}, InvalidArgumentError, "the key 'mask'"),
        ({"k": ["one", "two"]}, InvalidArgumentError, "episode 5 has no value of the fact 'one', 'two'"),
    ],
)  # fmt: skip
def test_choices_that_are_refused(choose, error, message, phrases):
    with pytest.raises(error, match=message):
        load(phrases, [], choose=choose)


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


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """A dataset without most facts; its tasks are null."""
    facts = {"task": pa.nulls(len(LENGTHS), pa.string()), "score": FACTS["score"]}
    return write(tmp_path_factory.mktemp("lacking") / "d", facts, seed=8)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("join", [False, True])
def test_facts_that_a_dataset_lacks(dataset, lacking, join, first):
    datasets = [dataset, lacking] if first == 0 else [lacking, dataset]
    mixture = Mixture(datasets, join=join, pad_to="largest")
    names = ["task", "level", "score", "success", "blob"]
    choose = {"phrase": "phrases"}
    loader = load(mixture, ["observations", *names], choose=choose)
    alone = load(dataset, names, choose=choose)
    assert "task_present" not in alone.batch(0)
    sources = set()
    for step, batch in enumerate(islice(loader, 5)):
        windows = loader.windows(step)
        sources |= {*windows["dataset"].tolist()}
        has = windows["dataset"] == first
        for key in ("task", "level", "success", "blob", "phrase"):
            assert batch[f"{key}_present"].dtype == np.bool_ and batch[f"{key}_present"].tolist() == has.tolist()
        assert "score_present" not in batch and "phrases" not in batch
        ids = windows["episode_id"].tolist()
        assert batch["task"] == [TASKS[i] if own else "" for i, own in zip(ids, has, strict=True)]
        assert batch["blob"] == [FACTS["blob"][i] if own else b"" for i, own in zip(ids, has, strict=True)]
        for key, dtype in (("level", np.int64), ("success", np.bool_)):
            assert batch[key].dtype == dtype
            assert batch[key].tolist() == [FACTS[key][i] if own else 0 for i, own in zip(ids, has, strict=True)]
        assert batch["score"].tolist() == [FACTS["score"][i] for i in ids]
        for i, own, phrase in zip(ids, has, batch["phrase"], strict=True):
            assert phrase in FACTS["phrases"][i] if own else phrase == ""
    assert sources == {0, 1}


@pytest.mark.parametrize("first", [0, 1])
def test_decoders_of_facts_that_a_dataset_lacks(dataset, lacking, first):
    def tokens(texts):
        return {"ids": [[1, *map(ord, text)] for text in texts]}

    datasets = [dataset, lacking] if first == 0 else [lacking, dataset]
    options = {"decoders": {"task": tokens}}
    for join in (False, True):
        loader = load(Mixture(datasets, join=join, pad_to="largest"), ["observations", "task"], **options)
        for step, batch in enumerate(islice(loader, 4)):
            windows = loader.windows(step)
            for row, (source, i) in enumerate(
                zip(windows["dataset"].tolist(), windows["episode_id"].tolist(), strict=True)
            ):
                own = [1, *map(ord, TASKS[i])] if source == first else []
                assert batch["task.ids"][row].tolist() == own + [0] * (batch["task.ids"].shape[1] - len(own))
        # A rank without rows has the keys of the others.
        empty = load(
            Mixture(datasets, join=join, pad_to="largest"), ["observations", "task"], rank=2, world_size=3, **options
        )
        assert empty.batch(0).keys() == loader.batch(0).keys()


def test_resuming_and_ranks_with_facts_that_a_dataset_lacks(dataset, lacking):
    def make(**options):
        return load(Mixture([lacking, dataset], join=True, pad_to="largest"), ["observations", "task"], **options)

    first = make(prefetch=2)
    expected_batches = list(islice(first, 5))
    state = first.state_dict()
    resumed = make(rank=1, world_size=2)
    resumed.load_state_dict(state)
    batch, whole = resumed.batch(state["step"]), make().batch(state["step"])
    assert batch["task"] == whole["task"][4:]
    assert batch["task_present"].tolist() == whole["task_present"][4:].tolist()
    assert len(expected_batches) == 5


def test_a_fact_that_a_dataset_lacks_needs_pad_to(dataset, lacking):
    with pytest.raises(InvalidArgumentError, match="no value of the fact 'task'"):
        load(Mixture([dataset, lacking], join=True), ["observations", "task"])
    with pytest.raises(UnknownNameError, match="unknown column 'levl'"):
        load(Mixture([dataset, lacking], join=True, pad_to="largest"), ["observations", "levl"])
    # A fact that some episodes lack is still an error.
    with pytest.raises(InvalidArgumentError, match="no value of the fact 'rating'"):
        load(Mixture([dataset, lacking], join=True, pad_to="largest"), ["observations", "rating"])
    with pytest.raises(InvalidArgumentError, match=r"(?s)pad_to adds the key 'level_present'"):
        own = {"rename": {"rewards": "level_present"}}
        mixture = Mixture([(dataset, 1, own), (lacking, 1, own)], join=True, pad_to="largest")
        load(mixture, ["level_present", "level"])


def test_episodes_with_facts(dataset):
    names = ["task", "level", "rewards", "blob", "facts.terminated", "success"]
    items = dataset[[1, 3, 4]].to_torch_dataset(columns=names)
    for item, i in zip(items, (1, 3, 4), strict=True):
        assert [*item] == ["episode_id", "rewards", "task", "level", "blob", "facts.terminated", "success"]
        assert item["episode_id"] == i and item["task"] == TASKS[i] and item["blob"] == FACTS["blob"][i]
        assert item["level"].dtype == torch.int64 and item["level"].shape == () and item["level"] == FACTS["level"][i]
        assert item["success"].item() is FACTS["success"][i] and item["facts.terminated"].dtype == torch.bool
        assert item["rewards"].shape == (LENGTHS[i],)
    assert pickle.loads(pickle.dumps(items))[-1]["task"] == TASKS[4]
    assert {*dataset.to_torch_dataset()[0]} == {"episode_id", *dataset.schema.names}
    assert dataset.to_torch_dataset(columns=["episode_id"])[2]["facts.episode_id"] == 2
    windows = dataset.to_torch_dataset(4, columns=["task", "level"])
    assert (windows[0]["task"], windows[0]["level"].item()) == (TASKS[0], FACTS["level"][0])
    with pytest.raises(InvalidArgumentError, match="no value of the fact 'rating'"):
        dataset.to_torch_dataset(columns=["rating"])
    with pytest.raises(UnknownNameError, match="did you mean 'level'"):
        dataset.to_torch_dataset(columns=["levl"])


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
