"""Text and encoded bytes in batches, against plain loops over episodes."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.errors import CorruptShardError, CorruptSourceError, InvalidArgumentError, UnknownNameError
from gear_data.loaders.decoding.images import ImageDecoder
from gear_data.loaders.decoding.pad_decoded import StepPositions, padded
from tests.support.feed import reference as ref
from tests.support.feed import variable as data
from tests.support.feed.arguments import grouped
from tests.support.feed.variable import IMAGE, TEXT

EPISODES = data.make_episodes()
OPTIONS = {"batch_size": 8, "context": 4, "seed": 5}
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """`EPISODES`, in several shards."""
    opened = data.convert(EPISODES, tmp_path_factory.mktemp("variable") / "d", shard_bytes=1024)
    assert opened.episodes["shard"].n_unique() > 2
    return opened


def cut(loader, step, name, episodes=EPISODES):
    """B lists: the valid steps of each window."""
    return data.cut(episodes, ref.as_windows(loader.windows(step)), name)


def same(batch, other):
    assert batch.keys() == other.keys()
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[key].dtype, key
            assert torch.equal(value, other[key]), key
        else:
            assert value == other[key], key


# Lists


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset_options": {"side": "left"}},
        {"preset": "decision_transformer", "columns": [TEXT, IMAGE]},
        {"anchor": "end", "stride": 2},
        {"sampler": "shuffle", "epochs": 1},
        {"dtype": "bfloat16", "n_step": 2},
        {"columns": ["next_observations", TEXT, IMAGE]},
        {"prefetch": 0, "context": 30},
    ],
)
def test_a_window_has_a_list_of_its_valid_steps(dataset, options):
    loader = SequenceLoader(dataset, **grouped(**{**OPTIONS, **options}))
    for step, batch in enumerate(itertools.islice(loader, 5)):
        assert batch[TEXT] == cut(loader, step, TEXT)
        assert batch[IMAGE] == cut(loader, step, IMAGE)
        assert [len(texts) for texts in batch[TEXT]] == batch["valid_count"].tolist()


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_views_and_residencies(dataset, residency):
    view = gear_data.open(dataset.path, residency=residency).filter(pl.col("length") > 5)
    loader = SequenceLoader(view.with_discount(0.5), **grouped(**OPTIONS))
    for step, batch in enumerate(itertools.islice(loader, 5)):
        assert batch[TEXT] == cut(loader, step, TEXT)
        assert {e for e, _, _ in ref.as_windows(loader.windows(step))} <= {2, 3, 5, 6}


@pytest.mark.parametrize("preset", ["raw", "transitions"])
def test_renamed_text(dataset, preset):
    options = {**OPTIONS, "context": 1, "preset": preset, "decoders": {TEXT: data.words}}
    (expected,) = itertools.islice(SequenceLoader(dataset, **grouped(**options)), 1)
    renamed = gear_data.Mixture([(dataset, 1, {"rename": {TEXT: "observations.said"}})])
    options["decoders"] = {"observations.said": data.words}
    (batch,) = itertools.islice(SequenceLoader(renamed, **grouped(**options)), 1)
    same({key.replace(TEXT, "observations.said"): values for key, values in expected.items()}, batch)


def test_ranks_have_their_rows(dataset):
    whole = list(itertools.islice(SequenceLoader(dataset, **grouped(decoders={TEXT: data.words}, **OPTIONS)), 3))
    for rank in range(3):
        loader = SequenceLoader(dataset, **grouped(rank=rank, world_size=3, decoders={TEXT: data.words}, **OPTIONS))
        rows = slice(rank * 8 // 3, (rank + 1) * 8 // 3)
        for batch, other in zip(itertools.islice(loader, 3), whole, strict=True):
            assert batch[IMAGE] == other[IMAGE][rows]
            width = batch[TEXT].shape[2]
            assert torch.equal(batch[TEXT], other[TEXT][rows, :, :width])
            assert not other[TEXT][rows, :, width:].any()


def test_a_rank_without_rows_has_the_same_keys(dataset):
    """40 steps in batches of 39: the last batch has one row, and rank 0 of 2 has none."""
    decoders = {TEXT: data.word_mapping, IMAGE: ImageDecoder()}
    options = {**OPTIONS, "batch_size": 39, "sampler": "shuffle", "epochs": 1, "decoders": decoders}
    last = [list(SequenceLoader(dataset, **grouped(rank=rank, world_size=2, **options)))[-1] for rank in range(2)]
    assert [len(batch["valid_count"]) for batch in last] == [0, 1]
    assert last[0].keys() == last[1].keys()
    for key, value in last[0].items():
        assert (value.dtype, value.ndim, len(value)) == (last[1][key].dtype, last[1][key].ndim, 0)
    texts = list(SequenceLoader(dataset, **grouped(rank=0, world_size=2, **{**options, "decoders": None})))[-1][TEXT]
    assert texts == []


def test_presets_that_take_only_the_first_step(dataset):
    loader = SequenceLoader(dataset, **grouped(preset="lerobot", **OPTIONS))
    decoded = SequenceLoader(
        dataset, **grouped(preset="lerobot", decoders={TEXT: data.words, IMAGE: ImageDecoder()}, **OPTIONS)
    )
    for step, (batch, other) in enumerate(zip(itertools.islice(loader, 3), decoded, strict=False)):
        texts = [texts[0] for texts in cut(loader, step, TEXT)]
        assert batch[TEXT] == texts
        expected, lengths = data.padded_sequences([[ids] for ids in data.words(texts)], 1, "right")
        assert np.array_equal(other[TEXT], expected[:, 0])
        assert np.array_equal(other[f"{TEXT}_length"], lengths[:, 0])
        pixels = np.stack([pixels[0] for pixels in cut(loader, step, "pixels")])
        assert np.array_equal(other[IMAGE].permute(0, 2, 3, 1), pixels)


def test_offsets_are_refused(dataset):
    with pytest.raises(InvalidArgumentError, match=TEXT):
        SequenceLoader(dataset, **grouped(offsets={TEXT: (0, 2)}, **OPTIONS))


def test_a_damaged_shard_is_named(tmp_path):
    ds = data.convert(EPISODES, tmp_path / "d")
    (entry,) = ds.manifest.shards
    path = ds.path / entry.entry.file
    content = bytearray(path.read_bytes())
    content[entry.buffers[TEXT] : entry.buffers[TEXT] + entry.variable[TEXT].bytes] = (
        b"\xff" * entry.variable[TEXT].bytes
    )
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match=re.escape(TEXT)) as caught:
        next(iter(SequenceLoader(gear_data.open(ds.path), **grouped(prefetch=0, **OPTIONS))))
    assert caught.value.file.endswith(entry.entry.file)


# Decoders


@pytest.mark.parametrize("side", ["left", "right"])
def test_lists_of_numbers_are_padded(dataset, side):
    loader = SequenceLoader(dataset, **grouped(preset_options={"side": side}, decoders={TEXT: data.words}, **OPTIONS))
    for step, batch in enumerate(itertools.islice(loader, 5)):
        rows = [data.words(texts) for texts in cut(loader, step, TEXT)]
        expected, lengths = data.padded_sequences(rows, 4, side)
        assert batch[TEXT].dtype == batch[f"{TEXT}_length"].dtype == torch.int64
        assert np.array_equal(batch[TEXT], expected)
        assert np.array_equal(batch[f"{TEXT}_length"], lengths)


def test_a_mapping_gives_a_key_each(dataset):
    loader = SequenceLoader(dataset, preset="decision_transformer", columns=[TEXT], decoders={TEXT: data.word_mapping})
    batch = next(iter(loader))
    ids = [data.words(texts) for texts in cut(loader, 0, TEXT)]
    expected, _ = data.padded_sequences(ids, 20, "left")
    mask, _ = data.padded_sequences([[[1] * len(each) for each in row] for row in ids], 20, "left")
    counts = data.padded([[len(each) for each in row] for row in ids], 20, "left", np.int16)
    assert np.array_equal(batch[f"{TEXT}.input_ids"], expected)
    assert np.array_equal(batch[f"{TEXT}.attention_mask"], mask)
    assert batch[f"{TEXT}.count"].dtype == torch.int16
    assert np.array_equal(batch[f"{TEXT}.count"], counts)
    assert {key for key in batch if key.startswith(TEXT)} == {
        f"{TEXT}.{name}" for name in ("input_ids", "attention_mask", "count")
    }


def test_a_huggingface_tokenizer(dataset):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # One tokenizer per loader: a call sets the padding of the tokenizer, and each loader decodes in a thread.
    tokenizers = []
    for _ in range(2):
        inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(data.VOCABULARY)}, unk_token="go"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizers.append(PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="", unk_token="go"))
    as_tensors = functools.partial(
        tokenizers[1], padding="max_length", max_length=5, truncation=True, return_tensors="pt"
    )
    for decoder, width in ((tokenizers[0], None), (as_tensors, 5)):
        loader = SequenceLoader(dataset, **grouped(decoders={TEXT: decoder}, **OPTIONS))
        for step, batch in enumerate(itertools.islice(loader, 3)):
            expected, lengths = data.padded_sequences([data.words(t) for t in cut(loader, step, TEXT)], 4, "right")
            ids, mask = batch[f"{TEXT}.input_ids"], batch[f"{TEXT}.attention_mask"]
            assert ids.dtype == mask.dtype == torch.int64
            assert ids.shape[2] == (width or expected.shape[2])
            assert np.array_equal(ids[..., : expected.shape[2]], expected)
            assert not ids[..., expected.shape[2] :].any()
            assert np.array_equal(mask.sum(2), lengths)


def _lengths(values):
    return [len(value) for value in values]


@pytest.mark.parametrize(
    ("give", "dtype"),
    [
        (lambda lengths: np.array(lengths, np.uint8), np.uint8),
        (lambda lengths: np.array(lengths, np.float16)[::-1][::-1], np.float16),
        (lambda lengths: np.broadcast_to(np.array(lengths, np.int32)[:, None], (len(lengths), 3)), np.int32),
        (lambda lengths: torch.tensor(lengths, dtype=torch.float64)[:, None, None], np.float64),
        (lambda lengths: lengths, np.int64),
        (lambda lengths: tuple(n > 7 for n in lengths), np.bool_),
        (lambda lengths: [np.full((2, 2), n, np.int16) for n in lengths], np.int16),
        (lambda lengths: [torch.full((2, 1), float(n)) for n in lengths], np.float32),
    ],
)
def test_arrays_keep_shape_and_dtype(dataset, give, dtype):
    loader = SequenceLoader(
        dataset,
        **grouped(decoders={TEXT: lambda texts: give(_lengths(texts))}, preset_options={"side": "left"}, **OPTIONS),
    )
    batch = next(iter(loader))
    rows = [[np.asarray(give(_lengths([text])))[0] for text in texts] for texts in cut(loader, 0, TEXT)]
    expected = data.padded(rows, 4, "left", dtype)
    assert batch[TEXT].numpy().dtype == dtype
    assert np.array_equal(batch[TEXT], expected)
    assert f"{TEXT}_length" not in batch


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_ragged_arrays_keep_their_dtype(dataset, make):
    dtype = np.float32 if make is np.array else torch.float32
    loader = SequenceLoader(
        dataset,
        **grouped(decoders={TEXT: lambda texts: [make(each, dtype=dtype) for each in data.words(texts)]}, **OPTIONS),
    )
    batch = next(iter(loader))
    expected, lengths = data.padded_sequences([data.words(t) for t in cut(loader, 0, TEXT)], 4, "right", np.float32)
    assert batch[TEXT].dtype == torch.float32
    assert np.array_equal(batch[TEXT], expected)
    assert np.array_equal(batch[f"{TEXT}_length"], lengths)


def test_texts_without_a_token_keep_the_dtype(dataset):
    loader = SequenceLoader(dataset, **grouped(decoders={TEXT: lambda texts: [[] for _ in texts]}, **OPTIONS))
    batch = next(iter(loader))
    assert batch[TEXT].shape == (8, 4, 0)
    assert batch[TEXT].dtype == torch.int64
    assert not batch[f"{TEXT}_length"].any()


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (lambda texts: data.words(texts)[1:], r"\d+ values for \d+ steps"),
        (lambda texts: np.zeros((len(texts) + 1, 2)), r"\d+ values for \d+ steps"),
        (lambda texts: torch.tensor(1), r"1 values for \d+ steps"),
        (lambda texts: {"ids": data.words(texts), "n": [1]}, r"'observations.text.n' 1 values"),
        (lambda texts: None, "NoneType"),
        (lambda texts: texts, "no tensor holds"),
        (lambda texts: [[text] for text in texts], "no tensor holds"),
        (lambda texts: [[1, [2, 3]] for _ in texts], "no tensor holds"),
        (lambda texts: [np.zeros((1, 1 + i % 2)) for i in range(len(texts))], r"different shapes: \(1, 1\), \(1, 2\)"),
        (lambda texts: [np.zeros(1 + i % 2) for i in range(len(texts) - 1)] + [np.zeros((1, 1))], "different shapes"),
        (
            lambda texts: [np.zeros(2, f"float{32 << i % 2}") for i in range(len(texts))],
            "different dtypes: float32, float64",
        ),
        (lambda texts: {"": texts}, "no tensor holds"),
    ],
)
def test_values_that_cannot_be_padded_are_refused(dataset, decoder, problem):
    loader = SequenceLoader(dataset, **grouped(decoders={TEXT: decoder}, **OPTIONS))
    with pytest.raises(InvalidArgumentError, match=problem) as caught:
        next(iter(loader))
    assert caught.value.column == TEXT


def test_a_key_that_is_taken_is_refused(tmp_path):
    ds = data.convert(EPISODES, tmp_path / "d", rename={"observations": f"{TEXT}.n"}, names=(TEXT,))
    assert f"{TEXT}.n" in ds.schema
    loader = SequenceLoader(ds, **grouped(decoders={TEXT: lambda texts: {"n": _lengths(texts)}}, **OPTIONS))
    with pytest.raises(InvalidArgumentError, match="has already"):
        next(iter(loader))


def test_decoders_for_other_columns_are_refused(dataset):
    for name in ("observations", "observations.texts"):
        with pytest.raises(UnknownNameError, match=f"these are: {IMAGE}, {TEXT};") as caught:
            SequenceLoader(dataset, **grouped(decoders={name: data.words}, **OPTIONS))
        assert caught.value.column == name
    with pytest.raises(UnknownNameError, match="these are: none"):
        SequenceLoader(dataset, **grouped(preset="corl", decoders={TEXT: data.words}, **OPTIONS))
    with pytest.raises(InvalidArgumentError, match="cannot be"):
        SequenceLoader(dataset, **grouped(decoders={TEXT: "bert-base-uncased"}, **OPTIONS))


def test_an_error_of_a_decoder_names_the_step(dataset):
    def decoder(texts):
        raise CorruptSourceError("no", row=5, hint="do")

    loader = SequenceLoader(dataset, **grouped(decoders={TEXT: decoder}, **OPTIONS))
    steps = [(e, first + j) for e, first, n in ref.as_windows(loader.windows(0)) for j in range(n)]
    with pytest.raises(CorruptSourceError) as caught:
        next(iter(loader))
    error = caught.value
    assert error.message == f"episode {steps[5][0]}, step {steps[5][1]}: no"
    assert (error.file, error.column, error.hint) == (str(dataset.path), TEXT, "do")


def test_one_thread_at_a_time(dataset):
    decoder = data.Alone()
    options = {**OPTIONS, "steps": 60, "decoders": {TEXT: decoder}}
    # More bytes than are made at once, so that the consumer and the thread both make batches.
    batches = list(SequenceLoader(dataset, **grouped(**{**options, "context": 9000})))
    assert len(decoder.threads) == 2
    assert len(batches) == 60


# Workers and mixtures


@pytest.mark.processes
@pytest.mark.parametrize(
    ("workers", "start", "prefetch", "decode"),
    [
        (0, None, 2, True),
        (2, "fork", 0, True),
        (2, "fork", 2, True),
        (2, "fork", 2, False),
        (1, "spawn", 2, True),
    ],
)
@pytest.mark.usefixtures("quick_spawn")
def test_workers_give_the_inline_batches(dataset, workers, start, prefetch, decode):
    decoders = {TEXT: data.word_mapping, IMAGE: ImageDecoder(dtype="float32")} if decode else None
    options = {**OPTIONS, "steps": 9, "decoders": decoders}
    loader = SequenceLoader(dataset, **grouped(prefetch=prefetch, **options))
    batches = list(DataLoader(loader, batch_size=None, num_workers=workers, multiprocessing_context=start))
    for batch, other in zip(batches, SequenceLoader(dataset, **grouped(prefetch=0, **options)), strict=True):
        same(batch, other)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Returns episodes, a dataset of them, and a dataset without text and images.

    The columns of text are in another order.
    """
    folder = tmp_path_factory.mktemp("others")
    episodes = data.make_episodes([5, 8], seed=2)
    return (
        episodes,
        data.convert(episodes, folder / "text", names=(IMAGE, TEXT)),
        data.convert(episodes, folder / "bare", names=()),
    )


def test_a_mixture_by_turns(dataset, others):
    episodes, text, bare = others
    mixture = Mixture([(dataset, 1), (text, 1), (bare, 1)])
    loader = SequenceLoader(mixture, **grouped(decoders={TEXT: data.words}, **OPTIONS))
    seen = set()
    for step, batch in enumerate(itertools.islice(loader, 9)):
        (source,) = set(batch["source"].tolist())
        seen.add(source)
        assert (TEXT in batch) == (IMAGE in batch) == (source != 2)
        if source != 2:
            mine = EPISODES if source == 0 else episodes
            assert batch[IMAGE] == cut(loader, step, IMAGE, mine)
            rows = [data.words(texts) for texts in cut(loader, step, TEXT, mine)]
            assert np.array_equal(batch[TEXT], data.padded_sequences(rows, 4, "right")[0])
    assert seen == {0, 1, 2}


def test_a_joined_mixture(dataset, others):
    episodes, text, bare = others
    loader = SequenceLoader(
        Mixture([(dataset, 2), (text, 1)], join=True), **grouped(decoders={TEXT: data.words}, **OPTIONS)
    )
    for step, batch in enumerate(itertools.islice(loader, 5)):
        windows = loader.windows(step)
        sources = windows["dataset"].tolist()
        assert set(sources) == {0, 1}
        images, texts = (
            [
                (EPISODES, episodes)[source][e][name][first : first + n]
                for source, (e, first, n) in zip(sources, ref.as_windows(loader.windows(step)), strict=True)
            ]
            for name in (IMAGE, TEXT)
        )
        assert batch[IMAGE] == images
        expected, lengths = data.padded_sequences([data.words(row) for row in texts], 4, "right")
        assert np.array_equal(batch[TEXT], expected)
        assert np.array_equal(batch[f"{TEXT}_length"], lengths)
    assert TEXT not in next(iter(SequenceLoader(Mixture([(dataset, 2), (bare, 1)], join=True), **grouped(**OPTIONS))))


def test_an_error_in_a_joined_batch_names_the_dataset(dataset, others):
    def decoder(texts):
        raise CorruptSourceError("no", row=len(texts) - 1)

    text = others[1]
    loader = SequenceLoader(
        Mixture([(dataset, 1), (text, 1)], join=True), **grouped(decoders={TEXT: decoder}, **OPTIONS)
    )
    windows = loader.windows(0)
    with pytest.raises(CorruptSourceError, match=f"episode {windows['episode_id'][-1]}, ") as caught:
        next(iter(loader))
    assert caught.value.file == str((dataset, text)[windows["dataset"][-1]].path)


def test_an_error_after_an_eviction_names_the_id_of_the_episode(tmp_path):
    def decoder(texts):
        raise CorruptSourceError("no", row=0)

    for number in range(6):
        with gear_data.Writer(tmp_path / "growing", shard_bytes=1024, max_steps=12) as writer:
            for step in range(5):
                writer.append(observations=np.float32(step), rewards=1.0, **{TEXT: f"episode {number}"})
            writer.end_episode(terminated=True)
    ds = gear_data.open(tmp_path / "growing")
    assert ds.episode_ids[0] > 0
    loader = SequenceLoader(ds, **grouped(decoders={TEXT: decoder}, **OPTIONS))
    with pytest.raises(CorruptSourceError, match=f"episode {loader.windows(0)['episode_id'][0]}, step "):
        next(iter(loader))


def test_joined_columns_must_be_alike(dataset, others):
    options = [{"columns": ["rewards", TEXT]}, {"columns": ["rewards", IMAGE]}]
    mixture = Mixture([(dataset, 1, options[0]), (others[1], 1, options[1])], join=True)
    with pytest.raises(InvalidArgumentError, match="differ in text, bytes and facts"):
        next(iter(SequenceLoader(mixture, **grouped(**OPTIONS))))


def test_values_may_need_one_shape():
    """The processes of a sharding pad alike only then."""
    steps, shapes = StepPositions((2,), np.arange(2)), {}
    for _ in range(2):
        padded("c", "c", [[1, 2], [3, 4]], steps, shapes)
    assert shapes == {"c": (2,)}
    for values in ([[1, 2], [3]], [[1], [2]], np.zeros((2, 3))):
        assert padded("c", "c", values, steps)["c"].shape[0] == 2
        with pytest.raises(InvalidArgumentError, match="unlike shapes"):
            padded("c", "c", values, steps, shapes)
