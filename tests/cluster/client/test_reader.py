"""A dataset read from two nodes gives the same batches as its folder, bit for bit."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import signal
import traceback
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import gear_data
from gear_data import Goals, Mixture, SequenceLoader
from gear_data.cluster.client import shard_client as shard_client_module
from gear_data.cluster.client import shards as shards_module
from gear_data.cluster.client.reader import ClusterReader
from gear_data.cluster.client.shards import RemoteShards
from gear_data.cluster.flight import fetch as flight_fetch
from gear_data.cluster.flight.client import Stream
from gear_data.collection.collector import Collector
from gear_data.collection.output import Output
from gear_data.collection.plan import CollectSource
from gear_data.dataset.stores.remote import open_remote_store
from gear_data.errors import ClusterError, InvalidArgumentError
from gear_data.loaders.presets.outputs import PRESETS
from gear_data.selection.windows import Windows
from gear_data.storage.mapped_shards import ShardLease
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed import data as feed_data
from tests.support.feed import variable as variable_data
from tests.support.feed.arguments import grouped
from tests.support.running.eventually import eventually

LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5, 9]
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """D4RL-like episodes with final observations, in several shards."""
    import h5py

    episodes = feed_data.locomotion(LENGTHS, seed=21)
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("cluster") / "rollouts.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards"):
            file[name] = np.concatenate([episode[name] for episode in episodes])
        ends = np.concatenate([np.arange(n) == n - 1 for n in LENGTHS])
        late = np.repeat(np.arange(len(LENGTHS)) % 3 == 0, LENGTHS)
        file["terminals"], file["timeouts"] = ends & ~late, ends & late
        finals = [rng.normal(size=(1, 4)).astype(np.float32) for _ in LENGTHS]
        following = [np.concatenate([e["observations"][1:], f]) for e, f in zip(episodes, finals, strict=True)]
        file["next_observations"] = np.concatenate(following)
    gear_data.convert(path, path.with_suffix(""), shard_bytes=1024, progress=False)
    return path.with_suffix("")


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster-text") / "d"
    variable_data.convert(variable_data.make_episodes(), path, shard_bytes=1024)
    return path


@pytest.fixture(scope="module")
def nodes(folder, text_folder, tmp_path_factory):
    """Two nodes with half of the shards each, and one with the text dataset."""
    count = len(gear_data.open(folder).manifest.shards)
    assert count > 4
    half = count // 2
    started = [
        NodeProcess(folder, f"0-{half}"),
        NodeProcess(folder, f"{half + 1}-{count - 1}", ["--residency", "host"]),
        NodeProcess(text_folder),
    ]
    assert [len(node.wait()["shards"]) for node in started[:2]] == [half + 1, count - half - 1]
    started[2].wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEAR_DATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield started
    for node in started:
        node.kill()


@pytest.fixture(scope="module")
def local(folder):
    return gear_data.open(folder)


@pytest.fixture(scope="module")
def remote(nodes):
    return gear_data.open(url(*nodes[:2]))


def same(value, other):
    if isinstance(value, dict):
        assert value.keys() == other.keys()
        for key in value:
            same(value[key], other[key])
    elif isinstance(value, torch.Tensor):
        assert (value.dtype, value.shape) == (other.dtype, other.shape)
        one, two = (np.atleast_1d(t.view(torch.int16) if t.dtype == torch.bfloat16 else t) for t in (value, other))
        assert one.tobytes() == two.tobytes()
    elif isinstance(value, list):
        for one, two in zip(value, other, strict=True):
            same(one, two)
    else:
        assert value == other


def batches(dataset, count=6, **options):
    loader = SequenceLoader(dataset, **grouped(**{"batch_size": 16, "context": 8, "seed": 3, "prefetch": 0, **options}))
    return list(itertools.islice(loader, count))


OPTIONS = {
    "plain": {},
    "weights": {"sampler": gear_data.Weighted("length * (episode_id % 3)")},
    "shuffled, prefetched": {"sampler": "shuffle", "prefetch": 2},
    "discount": {"discount": 0.9},
    "long": {"context": 64},
    "half, normalised": {"dtype": "bfloat16", "normalize": True},
    "following, n-step": {"columns": ["next_observations"], "n_step": 3, "discount": 0.97},
    "around": {"offsets": {"observations": (-5, 2), "actions": (3, 9)}, "columns": ["observations", "actions"]},
    "elements": {
        "stack": {"observations": [{"column": "observations", "elements": (1, 4), "scale": -2, "offset": 1}]},
        "normalize": True,
    },
    "times": {
        "offsets": {"actions": gear_data.Seconds([-0.3, 0, 0.31], fill="interpolate", fps=10)},
        "columns": ["actions"],
    },
    "far": {"offsets": {"rewards": (60, 62)}, "columns": ["rewards"]},
    "relative": {"relative": {"actions": "observations"}, "context": 9},
    "facts": {"columns": ["rewards", "length"]},
    "packed": {"pack": 48, "sampler": "shuffle", "columns": ["next_observations"]},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_gives_the_local_batches(local, remote, preset, options):
    try:
        expected = batches(local, preset=preset, **OPTIONS[options])
    except gear_data.GearError as error:
        # Options that a preset does not support raise the same error.
        with pytest.raises(type(error)):
            batches(remote, preset=preset, **OPTIONS[options])
        return
    assert len(expected) == 6
    same(batches(remote, preset=preset, **OPTIONS[options]), expected)


@pytest.mark.parametrize("options", [{}, {"offsets": {"observations": (-2, 1)}, "normalize": True, "prefetch": 3}])
@pytest.mark.parametrize("goals", [Goals(subgoal_steps=3), Goals(0.2, 0.6, 0.2, geometric=False, future=True)])
def test_goals_are_read_from_any_node(local, remote, goals, options):
    options = {"preset": "transitions", "context": 1, "goals": goals, **options}
    same(batches(remote, **options), batches(local, **options))


def test_statistics_of_relative_columns(local, remote, monkeypatch):
    monkeypatch.setattr("gear_data.dataset.relative.statistics.load_quantiles", lambda *_: None)
    found = [gear_data.relative_statistics(each, "actions", "observations", (0, 9)) for each in (local, remote)]
    assert [value.tobytes() for value in vars(found[0]).values()] == [v.tobytes() for v in vars(found[1]).values()]


def test_most_options_are_supported(local):
    supported = 0
    for preset, options in itertools.product(PRESETS, OPTIONS.values()):
        try:
            supported += bool(batches(local, 1, preset=preset, **options))
        except gear_data.GearError:
            continue
    assert supported > 0.7 * len(PRESETS) * len(OPTIONS)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_many_small_responses(local, remote, prefetch, monkeypatch):
    """Responses end in the middle of batches."""
    monkeypatch.setattr(flight_fetch, "REQUEST_BYTES", 700)
    taken, take = [], Stream.take
    monkeypatch.setattr(Stream, "take", lambda *given: taken.append(1) or take(*given))
    options = {"sampler": gear_data.Weighted("length"), "prefetch": prefetch}
    same(batches(remote, **options), batches(local, **options))
    assert len(taken) > 6 * 4


@pytest.mark.parametrize("at", ["_fill", "_point"])
def test_an_interrupted_read_leaves_nothing_behind(local, remote, at, monkeypatch):
    """Late responses of an interrupted read are not taken for the next read."""
    monkeypatch.setattr(flight_fetch, "REQUEST_BYTES", 700)
    with monkeypatch.context() as patch:

        def interrupt(*arguments):
            raise KeyboardInterrupt

        patch.setattr(ClusterReader, at, interrupt)
        with pytest.raises(KeyboardInterrupt):
            batches(remote)
    same(batches(remote), batches(local))


def test_views(local, remote):
    for view in (
        lambda d: d.filter("length > 6 AND terminated"),
        lambda d: d.filter_steps("rewards > 1"),
        lambda d: d.filter_steps("rewards > -20", mode="all").filter("length < 30"),
        lambda d: d.keep_ranges({2: [[0, 9], [12, 20]], 3: [[1, 40]]}),
        lambda d: d.drop_idle("observations", threshold=2.0, seconds=0.2, fps=10),
        lambda d: d.split({"a": 0.5, "b": 0.5}, seed=4)["b"],
        lambda d: d.with_discount(0.5),
    ):
        here, there = view(local), view(remote)
        assert there.fingerprint == here.fingerprint
        assert [(k, v.to_json()) for k, v in there.statistics.items()] == [
            (k, v.to_json()) for k, v in here.statistics.items()
        ]
        assert there.sizes(0, 2).tolist() == here.sizes(0, 2).tolist()
        same(batches(there, preset="decision_transformer"), batches(here, preset="decision_transformer"))


def test_a_dataset_that_was_saved_with_a_filter_of_steps(local, nodes, tmp_path):
    view = local.filter_steps("rewards > 0", mode="all")
    view.save(tmp_path / "saved", progress=False)
    node = NodeProcess(tmp_path / "saved")
    try:
        node.wait()
        served = gear_data.open(url(node))
        assert served.fingerprint == view.fingerprint and served.steps_left_out == view.steps_left_out > 0
        same(batches(served), batches(view))
        again = pickle.loads(pickle.dumps(served))
        same(batches(again), batches(view))
    finally:
        node.kill()


def test_episodes(local, remote):
    assert remote.residency == "remote"
    assert remote.episodes.equals(local.episodes)
    for index in range(local.num_episodes):
        for name in local.schema.names:
            values, expected = remote.episode(index)[name], local.episode(index)[name]
            assert values.dtype == expected.dtype
            np.testing.assert_array_equal(values, expected)
            assert not values.flags.writeable
        assert (remote.final(index) is None) == (local.final(index) is None)
        if local.final(index) is not None:
            np.testing.assert_array_equal(remote.final(index)["observations"], local.final(index)["observations"])
    np.testing.assert_array_equal(remote.steps("rewards", 1, 9), local.steps("rewards", 1, 9))


@pytest.mark.parametrize("join", [False, True])
def test_a_mixture_of_local_and_remote(local, remote, join):
    pairs = [[(one, 2.0), (two, 1.0)] for one, two in ((local, local), (local, remote), (remote, remote))]
    expected, half, whole = (batches(Mixture(pair, join=join)) for pair in pairs)
    same(half, expected)
    same(whole, expected)


@pytest.mark.parametrize("join", [False, True])
def test_a_padded_mixture_of_local_and_remote(local, remote, join):
    renamed = {"rename": {"observations": "observations.state"}, "normalize": True}
    pairs = [[(one, 2.0), (two, 1.0, renamed)] for one, two in ((local, local), (local, remote), (remote, remote))]
    pad_to = {"observations.state": 40, "actions": 9}
    expected, half, whole = (batches(Mixture(pair, join=join, pad_to=pad_to)) for pair in pairs)
    assert not expected[0]["observations_present"].all() or not join
    same(half, expected)
    same(whole, expected)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.usefixtures("quick_spawn")
def test_workers_of_a_data_loader(local, remote, start):
    options = {"batch_size": 16, "context": 8, "seed": 3, "steps": 12, "preset": "decision_transformer"}
    expected = list(SequenceLoader(local, **grouped(**options)))
    # This process reads too, before, during and after the workers.
    loader = SequenceLoader(remote, **grouped(**options))
    same(list(loader), expected)
    iterator = iter(SequenceLoader(remote, **grouped(**options)))
    first = [next(iterator), next(iterator)]
    workers = DataLoader(
        SequenceLoader(remote, **grouped(**options)),
        batch_size=None,
        num_workers=2 if start == "fork" else 1,
        multiprocessing_context=start,
    )
    same(list(workers), expected)
    same([*first, *iterator], expected)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_many_forks_while_this_process_reads(local, remote, prefetch):
    """A fork waits for gRPC's threads: about every fourth child hangs otherwise."""
    expected = batches(local, 2)
    reading = iter(SequenceLoader(remote, 16, context=8, prefetch=prefetch))
    ends = []
    for _ in range(12):
        next(reading)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                same(batches(remote, 2), expected)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        ends.append(os.waitpid(child, 0)[1])
    assert ends == [0] * 12


def test_a_pickled_dataset_connects_again(local, remote):
    copy = pickle.loads(pickle.dumps(remote.with_discount(0.9).filter("length > 6")))
    same(batches(copy), batches(local.with_discount(0.9).filter("length > 6")))


def test_text(text_folder, nodes):
    here, there = gear_data.open(text_folder), gear_data.open(url(nodes[2]))
    name = variable_data.TEXT
    options = {"context": 4, "columns": [name, variable_data.IMAGE]}
    for preset in ("raw", "decision_transformer"):
        for decoders in (None, {name: variable_data.words}):
            expected = batches(here, preset=preset, decoders=decoders, **options)
            same(batches(there, preset=preset, decoders=decoders, **options), expected)
    assert there.values(name, 1, 6).equals(here.values(name, 1, 6))
    assert there.episode(2)[name].tolist() == here.episode(2)[name].tolist()
    assert there.sizes(0, 7).tolist() == here.sizes(0, 7).tolist()


def test_more_values_than_a_response_may_have(text_folder, nodes, monkeypatch):
    """A shard is read in parts: it may be larger, and its rows may be shorter than the rows of other shards."""
    here, there = gear_data.open(text_folder), gear_data.open(url(nodes[2]))
    monkeypatch.setattr(shards_module, "_SPAN_BYTES", 1)
    # More than twice the bytes of one image, and fewer than those of the longest episode.
    monkeypatch.setattr(shard_client_module, "MAX_RESPONSE_BYTES", 1000)
    for name in (variable_data.TEXT, variable_data.IMAGE):
        assert there.values(name, 0, 7).equals(here.values(name, 0, 7))
        assert there.episode(6)[name].tolist() == here.episode(6)[name].tolist()


class _HalfRemote:
    """Mapped shards that pretend that the shards with odd numbers are remote."""

    all_mapped = False

    def __init__(self, shards):
        self._shards = shards

    def lease(self, shards):
        lease = self._shards.lease(shards)
        addresses = lease.addresses.copy()
        addresses[1::2] = 0
        return ShardLease(addresses, lease)

    def __getattr__(self, name):
        return getattr(self._shards, name)


windows = st.lists(st.tuples(st.integers(0, len(LENGTHS) - 1), st.integers(0, 39), st.integers(1, 9)), min_size=1)
sources = st.sampled_from(["observations", "actions", "rewards"])
outputs = st.lists(
    st.tuples(
        sources, st.integers(-9, 9), st.integers(1, 9), st.sampled_from([0, 1, -1]), st.integers(0, 4), st.booleans(),
        st.booleans(), st.booleans(),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@given(windows, outputs)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_any_output_of_any_windows(local, remote, drawn, wanted):
    """Shards that are local, remote, and both."""
    rows = [(e, s % LENGTHS[e], min(n, LENGTHS[e] - s % LENGTHS[e])) for e, s, n in drawn]
    chosen = Windows(*np.array(rows, np.int64).T.copy())
    requested = []
    for number, (name, first, width, shift, horizon, left, within, cast) in enumerate(wanted):
        spec = local.schema[name]
        discounts = tuple(0.9**j for j in range(horizon)) if horizon and not shift else None
        dtype = "float64" if cast else "float32"
        requested.append(
            Output(
                str(number), name, dtype, spec.shape, first, width, left, -3, within_window=within,
                shift=shift, discounts=discounts,
            )
        )  # fmt: skip
    store, client = local.store, remote.store._client
    episodes = (*store.episode_starts, store.lengths)
    here = np.arange(len(local.manifest.shards)) % 2 == 0
    mixed = ClusterReader(client, _HalfRemote(store.shards), here, *episodes, lambda: store.finals)
    all_local = ClusterReader(client, store.shards, here | True, *episodes, lambda: store.finals)
    found = []
    for reader in (local.store.reader(), remote.store.reader(), mixed, all_local):
        collector = Collector([CollectSource(reader, local.schema, tuple(requested))], len(rows), reuse=False)
        collected = collector(chosen)
        arrays = {key: (array.dtype, array.shape, array.tobytes()) for key, array in collected.arrays.items()}
        found.append((arrays, collected.valid_bytes))
    assert found[1:] == found[:1] * 3


def test_local_shards_cause_no_requests(local, monkeypatch):
    store = local.store

    class NoClient:
        """Fails on any use."""

    here = np.ones(len(local.manifest.shards), np.bool_)
    reader = ClusterReader(NoClient(), store.shards, here, *store.episode_starts, store.lengths, lambda: store.finals)
    output = Output("x", "observations", "float32", (4,), 0, 5)
    collected = [
        Collector([CollectSource(each, local.schema, (output,))], 3, reuse=False)(
            Windows(np.array([0, 3, 5]), np.array([2, 0, 9]), np.array([5, 5, 5]))
        )
        for each in (local.store.reader(), reader)
    ]
    np.testing.assert_array_equal(collected[0].arrays["x"], collected[1].arrays["x"])


def test_connections_end_with_the_dataset(nodes):
    dataset = gear_data.open(url(*nodes[:2]))
    batches(dataset, prefetch=2)
    peers = [weakref.ref(peer) for peer in dataset.store._client._directory.peers]
    assert any(peer()._idle for peer in peers)
    del dataset

    def are_gone() -> bool:
        gc.collect()  # the prefetch thread ends by itself, and leaves a reference cycle
        return [peer() for peer in peers] == [None, None]

    assert eventually(are_gone)


def test_options_that_remote_datasets_refuse(nodes, remote):
    place = url(*nodes[:2])
    for options in ({"residency": "host"}, {"on_bad_shard": "skip"}):
        with pytest.raises(InvalidArgumentError, match="that serve a dataset choose both"):
            gear_data.open(place, **options)
    with pytest.raises(InvalidArgumentError, match="needs a token"):
        gear_data.open("gear://10.0.0.1:1")
    store = open_remote_store(place)
    with pytest.raises(ClusterError, match="not files"), store.files.local(store.manifest.shards[0].entry):
        pass
    assert not RemoteShards(store._client).all_mapped
