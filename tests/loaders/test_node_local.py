"""Node-local selection: each node samples its own shards.

Together, the nodes sample like one sampler over all shards.
"""

from __future__ import annotations

import collections
import copy

import numpy as np
import pytest

import gear_data
from gear_data import Goals, SequenceLoader, TopK, Weighted, WindowOptions
from gear_data.cluster.rendezvous import Membership
from gear_data.errors import InvalidArgumentError, StateMismatchError, UnknownNameError
from tests.support.feed import data as feed_data

LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5, 9, 13, 30]
BATCH = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("decentralized") / "d"
    feed_data.convert_episodes(feed_data.locomotion(LENGTHS, seed=9), path, shard_bytes=1024)
    return path


def as_node(folder, node, nodes, ranks=1, rank=0, budget=None, view=lambda dataset: dataset):
    """Returns the dataset as a rank of a run with several nodes opens it."""
    dataset = gear_data.open(folder)
    names = [f"node-{number}" for number in range(nodes)]
    placement, owners = dataset.placement(names, budget=budget), dataset.placement(names)
    dataset.store.membership = Membership("run", node, rank, ranks, (None,) * nodes, placement, owners)
    return view(dataset)


def drawn(loader, steps):
    """The windows of some steps: (step, episode, first step)."""
    found = []
    for step in range(steps):
        windows = loader.windows(step)
        found += [(step, *row) for row in zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True)]
    return found


def together(folder, nodes, steps, budget=None, **options):
    """Returns the windows of each node."""
    return [
        drawn(
            SequenceLoader(
                as_node(folder, node, nodes, budget=budget),
                BATCH,
                context=5,
                seed=3,
                windows=WindowOptions(selection="decentralized"),
                **options,
            ),
            steps,
        )
        for node in range(nodes)
    ]


def test_one_node_draws_the_windows_of_centralized_selection(folder):
    alone = SequenceLoader(gear_data.open(folder), BATCH, context=5, seed=3)
    assert together(folder, 1, 20) == [drawn(alone, 20)]


def test_goals_are_on_the_node(folder):
    """Each node has goals of its own: no bytes go over the network, and nodes draw different numbers."""
    goals = Goals(0.1, 0.4, 0.5, actor_random=0.5, actor_trajectory=0.5)
    drawn_goals = []
    for node in range(2):
        dataset = as_node(folder, node, 2)
        owned = dataset.store.membership.owner()[dataset.shards] == node
        loader = SequenceLoader(
            dataset, BATCH, context=5, seed=3, windows=WindowOptions(selection="decentralized"), goals=goals
        )
        for step in range(20):
            table = loader.windows(step)
            for key in goals.keys:
                assert owned[table[f"{key}_episode_id"]].all()
            drawn_goals.append((node, step, tuple(table["value_goals_step"].tolist())))
    assert len({steps for _, _, steps in drawn_goals}) == len(drawn_goals)


@pytest.mark.parametrize("budget", [None, 1 << 20])
@pytest.mark.parametrize("sampler", [name for name in feed_data.EVERY_SAMPLER if name not in ("fifo", "shuffle")])
def test_nodes_together_draw_like_one_sampler(folder, sampler, budget):
    made = {**feed_data.EVERY_SAMPLER, "topk": TopK("length", 5)}[sampler]
    nodes, steps = 3, 600
    found = together(folder, nodes, steps, budget, sampler=made)
    shards = gear_data.open(folder).episodes["shard"].to_numpy()
    placement = gear_data.open(folder).placement([f"node-{number}" for number in range(nodes)])
    for node, windows in enumerate(found):
        # Copies on other nodes draw nothing.
        assert {int(shards[episode]) for _, episode, _ in windows} <= set(placement.held[node])
    rows = collections.Counter(step for windows in found for step, _, _ in windows)
    assert rows == dict.fromkeys(range(steps), BATCH)
    shares = (
        SequenceLoader(gear_data.open(folder), BATCH, context=5, sampler=made)
        ._stages.newest.components[0]
        .selector.shares()
    )
    counts = np.bincount([episode for windows in found for _, episode, _ in windows], minlength=len(LENGTHS))
    assert not counts[shares == 0].any()
    expected = shares[shares > 0] * steps * BATCH
    chi_square = float(((counts[shares > 0] - expected) ** 2 / expected).sum())
    # Only one in a million of such draws has a larger value, by the cube root normal approximation (Wilson-Hilferty).
    freedom = np.count_nonzero(shares) - 1
    assert ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom)) < 4.8


def test_nodes_draw_different_numbers(folder):
    """Equal numbers would put the same slots of all nodes early (or late)."""
    starts = []
    for node in range(2):
        loader = SequenceLoader(
            as_node(folder, node, 2),
            BATCH,
            context=5,
            seed=3,
            windows=WindowOptions(selection="decentralized"),
            sampler="uniform",
        )
        part = loader._stages.newest.components[0].selector._own
        windows = part.select(0, 64, 0)
        starts.append((windows.start / np.array(LENGTHS)[windows.episode_id]).round(3).tolist())
    assert starts[0] != starts[1]
    assert abs(np.corrcoef(starts)[0, 1]) < 0.5


def test_an_epoch_has_every_window_once(folder):
    total = sum(LENGTHS)
    found = together(folder, 2, total // BATCH, sampler="shuffle")
    assert total % BATCH == 0
    windows = [(episode, start) for node in found for _, episode, start in node]
    assert sorted(windows) == [(e, s) for e, length in enumerate(LENGTHS) for s in range(length)]


def test_probabilities_are_of_the_whole_dataset(folder):
    sampler = Weighted("exp(length / 15)")
    alone = SequenceLoader(gear_data.open(folder), 500, context=5, sampler=sampler, steps=4, prefetch=0)
    known = {}
    for step, batch in enumerate(alone):
        known |= dict(zip(alone.windows(step)["episode_id"].tolist(), batch["probability"].tolist(), strict=True))
    for node in range(3):
        own = SequenceLoader(
            as_node(folder, node, 3),
            BATCH,
            context=5,
            sampler=sampler,
            windows=WindowOptions(selection="decentralized"),
            steps=5,
            prefetch=0,
        )
        for step, batch in enumerate(own):
            episodes = own.windows(step)["episode_id"].tolist()
            np.testing.assert_allclose(batch["probability"], [known[episode] for episode in episodes], rtol=1e-4)


def test_ranks_divide_the_rows_of_their_node(folder):
    whole = SequenceLoader(
        as_node(folder, 1, 2), BATCH, context=5, windows=WindowOptions(selection="decentralized"), steps=30
    )
    ranks = [
        SequenceLoader(
            as_node(folder, 1, 2, ranks=2, rank=rank),
            BATCH,
            context=5,
            windows=WindowOptions(selection="decentralized"),
            steps=30,
        )
        for rank in range(2)
    ]
    for batch, *parts in zip(whole, *ranks, strict=True):
        joined = np.concatenate([part["observations"].numpy() for part in parts])
        np.testing.assert_array_equal(batch["observations"].numpy(), joined)


def test_views_and_their_statistics(folder):
    """No node draws episodes that the view leaves out.

    Values are normalised by the statistics of all nodes' episodes.
    """
    view = gear_data.open(folder).filter("length > 6")
    own = as_node(folder, 0, 2, view=lambda dataset: dataset.filter("length > 6"))
    loader = SequenceLoader(
        own, BATCH, context=5, windows=WindowOptions(selection="decentralized"), normalize=True, steps=3
    )
    assert {LENGTHS[episode] > 6 for _, episode, _ in drawn(loader, 3)} == {True}
    expected = SequenceLoader(view, BATCH, context=5, normalize=True)
    assert loader.spec()["normalize"] == expected.spec()["normalize"]


def test_states(folder):
    def make(node, nodes, **options):
        return SequenceLoader(
            as_node(folder, node, nodes), BATCH, context=5, windows=WindowOptions(selection="decentralized"), **options
        )

    state = make(0, 2).state_dict()
    for node in range(2):
        make(node, 2).load_state_dict(copy.deepcopy(state))
    for other in (make(0, 3), SequenceLoader(gear_data.open(folder), BATCH, context=5)):
        with pytest.raises(StateMismatchError, match="another selection"):
            other.load_state_dict(state)


def test_invalid_arguments_are_refused(folder):
    own = as_node(folder, 0, 2)
    with pytest.raises(UnknownNameError, match="centralised"):
        SequenceLoader(own, windows=WindowOptions(selection="centralised"))
    with pytest.raises(InvalidArgumentError, match="no nodes"):
        SequenceLoader(gear_data.open(folder), windows=WindowOptions(selection="decentralized"))
    with pytest.raises(InvalidArgumentError, match="a mixture"):
        SequenceLoader(gear_data.Mixture([(own, 1.0)]), windows=WindowOptions(selection="decentralized"))
    with pytest.raises(InvalidArgumentError, match="the run gives rank and world_size"):
        SequenceLoader(own, rank=0, world_size=2, windows=WindowOptions(selection="decentralized"))
    with pytest.raises(InvalidArgumentError, match="its ranks would have no rows"):
        SequenceLoader(own, sampler=TopK("length", 1), windows=WindowOptions(selection="decentralized"))
    weighted = SequenceLoader(own, sampler=Weighted("length"), windows=WindowOptions(selection="decentralized"))
    with pytest.raises(InvalidArgumentError, match="with selection='centralized'"):
        weighted.update_weights([0], [1.0])
