"""Batches of any loader against plain loops, and its windows against the rule.

The loops read the arrays from which the dataset was made.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data import SequenceLoader, TopK, Weighted
from gear_data.errors import EmptySourceError, InvalidArgumentError
from tests.support.feed import data as feed_data
from tests.support.feed.arguments import grouped
from tests.support.feed.selection import Case

#: Lengths of episodes, and further columns -> (dtype, shape of a step).
KINDS = [
    ([7, 1, 23, 40, 2, 20, 19, 21, 5], {"infos.flag": (bool, ()), "count": (np.int16, (1,))}),
    ([1, 1, 3, 1, 40, 1, 2], {"observations.image": (np.uint8, (2, 3)), "infos.half": (np.float16, (2,))}),
    ([12, 12, 12, 12], {"infos.deep": (np.float64, (2, 1, 3)), "id": (np.uint64, ()), "tiny": (np.int8, (5,))}),
    ([40], {"wide": (np.float32, (33,)), "stamp": (np.int64, ()), "infos.flags": (bool, (3,))}),
]
OWN = [
    {"observations": (np.float32, (4,)), "actions": (np.float32, (3,)), "rewards": (np.float32, ())},
    {"observations": (np.float32, (1,)), "actions": (np.int64, ()), "rewards": (np.float64, ())},
    {"observations": (np.float64, (5,)), "actions": (np.uint8, (2,)), "rewards": (np.float32, ())},
    {"observations": (np.float64, ()), "actions": (np.float64, (1, 2)), "rewards": (np.float64, ())},
]
COLUMNS = [{**own, **more} for own, (_, more) in zip(OWN, KINDS, strict=True)]


def random_values(rng, dtype, shape):
    if dtype is bool:
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind == "f":
        return rng.normal(3.0, 2.0, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def make_episodes(kind):
    rng = np.random.default_rng(kind)
    episodes = []
    for length in KINDS[kind][0]:
        columns = COLUMNS[kind].items()
        episode = {name: random_values(rng, dtype, (length, *shape)) for name, (dtype, shape) in columns}
        # Multiples of 1/4: their sums are exact in any order.
        episode["rewards"] = (rng.integers(-8, 8, length) / 4).astype(episode["rewards"].dtype)
        episodes.append(episode)
    return episodes


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("properties")
    return [
        feed_data.convert_episodes(make_episodes(kind), folder / str(kind), shard_bytes=1024)
        for kind in range(len(KINDS))
    ]


@functools.cache
def stored_episodes(kind):
    """Returns the columns of the source, and the columns that conversion adds."""
    episodes = make_episodes(kind)
    for episode in episodes:
        length = len(episode["rewards"])
        episode["terminated"] = np.zeros(length, bool)
        episode["truncated"] = np.arange(length) == length - 1
        sums = [math.fsum(episode["rewards"][t:].tolist()) for t in range(length)]
        episode["returns_to_go"] = np.array(sums, np.float32)
    return episodes


# Loaders


#: Weights are length + 1, see `check_probability`.
SAMPLERS = {
    **feed_data.EVERY_SAMPLER,
    "weighted-step": Weighted("length + 1", by="step"),
    "topk-episode": TopK(pl.col("length"), 1, by="episode"),
}
VIEWS = ["all", "long", "part", "rewarded", "rewarded throughout", "long and rewarded"]


@st.composite
def loaders(draw):
    """(dataset's number, view, arguments of a loader)."""
    kind = draw(st.integers(0, len(KINDS) - 1))
    names = [*COLUMNS[kind], "terminated", "truncated", "returns_to_go"]
    columns = draw(st.none() | st.lists(st.sampled_from(names), min_size=1, unique=True))
    used = columns or names
    spans = st.tuples(st.integers(-9, 9), st.integers(1, 12)).map(lambda span: (span[0], sum(span)))
    spans |= st.lists(st.integers(-9, 9), min_size=1, max_size=5)
    numbers = [name for name in used if COLUMNS[kind].get(name, (bool,))[0] is not bool]
    world_size = draw(st.sampled_from([1, 1, 2, 3]))
    arguments = {
        "batch_size": draw(st.integers(world_size, 9)),
        "context": draw(st.integers(1, 12)),
        "stride": draw(st.integers(1, 4)),
        "anchor": draw(st.sampled_from(["start", "end", "random"])),
        "short": draw(st.booleans()),
        "sampler": draw(st.sampled_from(list(SAMPLERS))),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "columns": columns,
        "offsets": draw(st.dictionaries(st.sampled_from(used), spans, max_size=2)),
        "normalize": draw(
            st.none() | st.just(True) | st.lists(st.sampled_from(numbers), unique=True, max_size=2)
            if numbers else st.none()
        ),
        "dtype": draw(st.sampled_from([None, None, "float32", "float64", "float16", "bfloat16"])),
        "rank": draw(st.integers(0, world_size - 1)),
        "world_size": world_size,
        "prefetch": draw(st.sampled_from([0, 1, 3])),
    }  # fmt: skip
    return kind, draw(st.sampled_from(VIEWS)), arguments


@functools.cache
def flags_of(kind):
    return tuple(bool(reward > 0) for episode in make_episodes(kind) for reward in episode["rewards"])


_views = {}


def view_of(dataset, kind, view):
    """Returns a view, its episodes' ids and its step filter, made once.

    The ids and the filter come from plain loops.
    """
    if (kind, view) not in _views:
        lengths = KINDS[kind][0]
        ids, flags, mode = list(range(len(lengths))), None, "first"
        if view.startswith("long"):
            dataset, ids = dataset.filter("length > 6"), [i for i in ids if lengths[i] > 6]
        elif view == "part" and len(ids) > 1:
            dataset = dataset.split({"train": 0.6, "val": 0.4}, seed=1)["val"]
            ids = dataset.episodes["episode_id"].to_list()
        if "rewarded" in view:
            flags, mode = flags_of(kind), "all" if "throughout" in view else "first"
            dataset = dataset.filter_steps(pl.col("rewards") > 0, mode=mode)
        _views[kind, view] = dataset, ids, flags, mode
    return _views[kind, view]


# Batches, by plain loops


def plain_statistics(episodes, name):
    """Returns mean and standard deviation, float64.

    They are of each element of a vector, else of all elements together.
    """
    steps = np.concatenate([episode[name] for episode in episodes]).astype(np.float64)
    elements = steps.T.tolist() if steps.ndim == 2 else [steps.reshape(-1).tolist()]
    mean = [math.fsum(element) / len(element) for element in elements]
    std = [
        math.sqrt(math.fsum((value - middle) ** 2 for value in element) / len(element))
        for element, middle in zip(elements, mean, strict=True)
    ]
    return np.array(mean), np.array([value or 1.0 for value in std])


def plain_column(episodes, name, windows, span, context):
    """Returns values [B, width, *shape], and bool [B, width] of valid steps.

    Values are float64 or the column's dtype, with zeros in padding.
    """
    offsets = span if isinstance(span, list) else range(*(span or (0, context)))
    values = episodes[0][name]
    out = np.zeros((len(windows), len(offsets), *values.shape[1:]), values.dtype)
    valid = np.zeros(out.shape[:2], np.bool_)
    for row, (episode, start, length) in enumerate(windows):
        inside = range(len(episodes[episode][name])) if span else range(start, start + length)
        for place, offset in enumerate(offsets):
            if (step := start + offset) in inside:
                out[row, place] = episodes[episode][name][step]
                valid[row, place] = True
    return out, valid


def plain_dtype(name, dtype, wanted, normalized):
    """The dtype of a column of the batch, as torch."""
    if np.dtype(dtype).kind == "f" and wanted is not None:
        return getattr(torch, wanted)
    if name in normalized and dtype not in (np.float32, np.float64):
        return getattr(torch, wanted or "float32")
    return torch.from_numpy(np.zeros(1, dtype)).dtype


def check_column(tensor, expected, dtype, exact):
    assert tensor.dtype == dtype
    wanted = torch.from_numpy(expected)
    if dtype in (torch.float16, torch.bfloat16):
        wanted = wanted.to(torch.float32)  # as is documented: rounded to float32 first
    wanted = wanted.to(dtype)
    if exact:
        assert torch.equal(tensor, wanted)
    else:
        # Means and deviations summed in another order: a unit in the last place, or what cancelling leaves of it.
        torch.testing.assert_close(tensor, wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-12, equal_nan=True)


def check_batch(batch, windows, episodes, ids, arguments):
    names = arguments["columns"] or list(episodes[0])
    context, offsets, normalize = (arguments[name] for name in ("context", "offsets", "normalize"))
    if normalize is True:
        floats = [name for name in names if episodes[0][name].dtype.kind == "f"]
        normalize = [name for name in floats if name.split(".")[0] == "observations"]
    keys = {*names, *(f"{name}_mask" for name in offsets), "timesteps", "mask", "valid_count"}
    for name in names:
        values, valid = plain_column(episodes, name, windows, offsets.get(name), context)
        dtype = plain_dtype(name, values.dtype.type, arguments["dtype"], normalize or ())
        if name in (normalize or ()):
            mean, std = plain_statistics([episodes[i] for i in ids], name)
            values = (values.astype(np.float64) - mean) / std
            values[~valid] = 0
        check_column(batch[name], values, dtype, exact=name not in (normalize or ()))
        if name in offsets:
            assert torch.equal(batch[f"{name}_mask"], torch.from_numpy(valid))
    steps = [[start + k if k < length else 0 for k in range(context)] for _, start, length in windows]
    masks = [[k < length for k in range(context)] for *_, length in windows]
    assert torch.equal(batch["timesteps"], torch.tensor(steps, dtype=torch.int64).reshape(-1, context))
    assert torch.equal(batch["mask"], torch.tensor(masks, dtype=torch.bool).reshape(-1, context))
    assert torch.equal(batch["valid_count"], torch.tensor([n for *_, n in windows], dtype=torch.int64))
    assert batch.keys() - {"probability", "weights_version"} == keys


def check_probability(batch, windows, case, by):
    anchors = {episode: len(case.anchors(episode)) for episode in case.ids}
    weights = {episode: case.lengths[episode] + 1 for episode, count in anchors.items() if count}
    total = sum(weight * (anchors[episode] if by == "step" else 1) for episode, weight in weights.items())
    expected = [weights[e] / total / (1 if by == "step" else anchors[e]) for e, _, _ in windows]
    np.testing.assert_allclose(batch["probability"].numpy(), expected, rtol=1e-12)
    assert batch["probability"].dtype == torch.float64
    assert torch.equal(batch["weights_version"], torch.zeros(len(windows), dtype=torch.int64))


@given(loaders())
@settings(max_examples=300)
def test_batches_equal_plain_loops(datasets, drawn):
    kind, view, arguments = drawn
    lengths = KINDS[kind][0]
    try:
        dataset, ids, flags, mode = view_of(datasets[kind], kind, view)
    except EmptySourceError:
        assert view.startswith("long")
        assert max(lengths) <= 6
        return
    case = Case(
        lengths, ids, arguments["context"], arguments["stride"], arguments["anchor"], arguments["short"],
        flags, mode,
    )  # fmt: skip
    make = functools.partial(SequenceLoader, dataset, preset="raw")
    options = grouped(**{**arguments, "sampler": SAMPLERS[arguments["sampler"]]})
    if flags is not None and case.anchor == "random":
        with pytest.raises(InvalidArgumentError, match="random"):
            make(**options)
        return
    if not case.all_anchors():
        with pytest.raises(InvalidArgumentError, match=r"no window|no episode"):
            make(**options)
        return
    permitted = {
        case.window(episode, anchor, place)
        for episode, anchor in case.all_anchors()
        for place in range(case.context if case.anchor == "random" else 1)
    }
    loader = make(**options)
    size, rank, world_size = (arguments[name] for name in ("batch_size", "rank", "world_size"))
    iterator = iter(loader)
    for step, batch in enumerate(itertools.islice(iterator, 5)):
        selection = loader.windows(step)
        windows = list(zip(*(selection[name].tolist() for name in ("episode_id", "start", "length")), strict=True))
        assert len(windows) == size
        assert permitted.issuperset(windows)
        mine = windows[rank * size // world_size : (rank + 1) * size // world_size]
        check_batch(batch, mine, stored_episodes(kind), ids, arguments)
        if arguments["sampler"].startswith("weighted"):
            check_probability(batch, mine, case, "step" if "step" in arguments["sampler"] else "episode")
        else:
            assert not batch.keys() & {"probability", "weights_version"}
    iterator.close()


@given(st.integers(0, len(KINDS) - 1), st.sampled_from(["all", "long", "rewarded"]), st.integers(1, 9), st.data())
@settings(max_examples=25)
def test_every_anchor_occurs_once_an_epoch(datasets, kind, view, batch_size, data):
    dataset, ids, flags, mode = view_of(datasets[kind], kind, view)
    rule = {
        "context": data.draw(st.integers(1, 7)),
        "stride": data.draw(st.integers(1, 3)),
        "anchor": data.draw(st.sampled_from(["start", "end"])),
    }
    case = Case(KINDS[kind][0], ids, flags=flags, mode=mode, **rule)
    for sampler in ("fifo", "shuffle"):
        if not case.all_anchors():
            continue
        loader = SequenceLoader(dataset, batch_size, **grouped(columns=["rewards"], sampler=sampler, epochs=2, **rule))
        selections = [loader.windows(step) for step in range(len(loader))]
        windows = [window for s in selections for window in zip(*(s[n].tolist() for n in list(s)[1:]), strict=True)]
        expected = [case.window(*anchor) for anchor in case.all_anchors()]
        if sampler == "fifo":
            assert windows == expected * 2
        assert sorted(windows[: len(expected)]) == sorted(windows[len(expected) :]) == sorted(expected)
