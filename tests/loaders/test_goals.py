"""Goals in batches: against plain indexing, and the same for any ranks."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import polars as pl
import pytest
import torch

from gear_data import Goals, Mixture, SequenceLoader, Weighted
from gear_data.errors import InvalidArgumentError, StateMismatchError, UnknownNameError
from tests.support.feed import data as feed_data
from tests.support.feed import transitions
from tests.support.feed.arguments import grouped

LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5]
STEPS = 4


def episodes(seed):
    rng = np.random.default_rng(seed)
    made = feed_data.locomotion(LENGTHS, seed)
    for episode in made:
        episode["achieved"] = rng.integers(-100, 100, (len(episode["rewards"]), 2))
    return made


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("goals")
    # Small shards: most goals are in another shard than their window.
    return [feed_data.convert_episodes(episodes(seed), folder / str(seed), shard_bytes=1024) for seed in (1, 2)]


def loader(dataset, **options):
    return SequenceLoader(
        dataset, **grouped(**{"batch_size": 32, "context": 1, "seed": 3, "goals": Goals(), **options})
    )


def check_values(loader, keys, column="observations", expected=lambda values, step: values[step]):
    """Compares batches with the episodes.

    Returns the goals' (dataset, episode, step).
    """
    seen = set()
    for step, batch in enumerate(islice(loader, STEPS)):
        table = loader.windows(step)
        for key in keys:
            assert len(batch[key]) == len(table["dataset"])
            goals = np.stack([table["dataset"], table[f"{key}_episode_id"], table[f"{key}_step"]], 1)
            for row, (dataset, episode, at) in enumerate(goals.tolist()):
                values = torch.from_numpy(episodes(dataset + 1)[episode][column])
                assert torch.equal(batch[key][row], expected(values, at)), (step, key, row)
                seen.add((dataset, episode, at))
    return seen


@pytest.mark.parametrize("prefetch", [0, 3])
def test_goals_are_observations_of_the_drawn_steps(datasets, prefetch):
    check_values(loader(datasets[0], prefetch=prefetch), ("value_goals", "actor_goals"))


def test_subgoals(datasets):
    keys = ("value_goals", "low_actor_goals", "high_actor_goals", "high_actor_targets")
    check_values(loader(datasets[0], goals=Goals(subgoal_steps=4)), keys)
    assert json.dumps(Goals(subgoal_steps=np.int64(4)).to_json()) == json.dumps(Goals(subgoal_steps=4).to_json())


def test_goals_are_stacked_normalised_and_cast_like_the_column(datasets):
    def stack(values, step):
        rows = values[np.maximum([step - 2, step - 1, step], 0)].double()
        return ((rows - 3) / torch.tensor([2.0, 4.0, 1.0, 0.5], dtype=torch.float64)).float().bfloat16()

    statistics = {"observations": (np.full(4, 3.0), np.array([2.0, 4.0, 1.0, 0.5]))}
    options = {"offsets": {"observations": (-2, 1)}, "normalize": statistics, "dtype": "bfloat16"}
    check_values(loader(datasets[0], **options), ("value_goals", "actor_goals"), expected=stack)


@pytest.mark.parametrize("columns", [None, ["observations"]])
def test_goals_of_another_column(datasets, columns):
    goals = Goals(goal_column="achieved")
    check_values(loader(datasets[0], goals=goals, columns=columns), ("value_goals", "actor_goals"), "achieved")


@pytest.mark.parametrize("join", [False, True])
def test_goals_of_a_mixture_are_of_the_windows_own_dataset(datasets, join):
    mixture = Mixture([(datasets[0], 2), (datasets[1], 1)], join=join)
    seen = check_values(loader(mixture, prefetch=0), ("value_goals", "actor_goals"))
    assert {dataset for dataset, _, _ in seen} == {0, 1}


def test_goals_of_joined_datasets_have_one_shape(datasets, tmp_path):
    made = episodes(1)
    for episode in made:
        episode["achieved"] = np.concatenate([episode["achieved"]] * 2, axis=1)
    other = feed_data.convert_episodes(made, tmp_path / "d")
    options = {"goals": Goals(goal_column="achieved"), "columns": ["observations"]}
    with pytest.raises(InvalidArgumentError, match="the datasets' batches differ in 'goals'"):
        loader(Mixture([(datasets[0], 1), (other, 1)], join=True), **options)
    alternating = loader(Mixture([(datasets[0], 1), (other, 1)]), **options)
    assert {batch["value_goals"].shape for batch in islice(alternating, 2)} == {(32, 2), (32, 4)}


def test_goals_of_numpy_batches(datasets):
    for goals, offsets in ((Goals(), None), (Goals(subgoal_steps=3), {"observations": (-1, 1)})):
        options = {"goals": goals, "offsets": offsets, "preset": "transitions", "steps": STEPS}
        arrays, tensors = loader(datasets[0], framework="numpy", **options), loader(datasets[0], **options)
        for one, other in zip(arrays, tensors, strict=True):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[key], other[key].numpy()) for key in one)


def test_random_goals_are_steps_of_the_view(datasets):
    always = Goals(0, 0, 1, actor_trajectory=0, actor_random=1)
    view = datasets[0].filter(pl.col("length") > 20)
    seen = check_values(loader(view, goals=always), ("value_goals", "actor_goals"))
    assert {episode for _, episode, _ in seen} == {2, 3, 7}
    steps = datasets[0].filter_steps("rewards > 0")
    rewards = [episode["rewards"] for episode in episodes(1)]
    for _, episode, step in check_values(loader(steps, goals=always), ("value_goals", "actor_goals")):
        assert rewards[episode][step] > 0


def test_a_weighted_sampler_leaves_random_goals_uniform(datasets):
    sampler = Weighted(pl.when(pl.col("length") == 40).then(1.0).otherwise(0.0))
    goals = Goals(0, 0, 1)
    weighted = loader(datasets[0], sampler=sampler, goals=goals)
    uniform = loader(datasets[0], goals=goals)
    assert set(weighted.windows(0)["episode_id"].tolist()) == {3}
    for key in ("value_goals_episode_id", "value_goals_step"):
        assert np.array_equal(weighted.windows(0)[key], uniform.windows(0)[key])


def test_the_current_step_is_the_anchor(datasets):
    goals = Goals(1, 0, 0)
    for anchor, place in (("start", lambda table: 0), ("end", lambda table: table["length"] - 1)):
        table = loader(datasets[0], goals=goals, context=5, anchor=anchor).windows(1)
        assert np.array_equal(table["value_goals_step"], table["start"] + place(table))
        assert np.array_equal(table["value_goals_episode_id"], table["episode_id"])


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("mixed", [None, False, True])
def test_any_number_of_ranks_has_the_same_global_batch(datasets, world_size, mixed):
    dataset = datasets[0] if mixed is None else Mixture([(datasets[0], 2), (datasets[1], 1)], join=mixed)
    whole = list(loader(dataset, steps=STEPS, prefetch=0))
    ranks = [loader(dataset, steps=STEPS, rank=rank, world_size=world_size) for rank in range(world_size)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        for key, value in batch.items():
            assert torch.equal(torch.cat([part[key] for part in parts]), value), key


def test_goals_do_not_change_windows_and_are_part_of_the_state(datasets):
    one, other = loader(datasets[0]), loader(datasets[0], goals=None)
    plain = other.windows(2)
    assert {key: one.windows(2)[key].tolist() for key in plain} == {key: plain[key].tolist() for key in plain}
    assert json.loads(json.dumps(one.spec()))["goals"]["trajectory"] == 0.5
    with pytest.raises(StateMismatchError, match="another goals"):
        other.load_state_dict(one.state_dict())
    resumed = loader(datasets[0])
    state = {**one.state_dict(), "step": 3}
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert torch.equal(next(iter(resumed))["value_goals"], one.batch(3)["value_goals"])


def test_bad_goals_of_a_loader_are_refused(datasets):
    with pytest.raises(InvalidArgumentError, match=r"goals must be a gear_data.Goals, not 0\.5"):
        loader(datasets[0], goals=0.5)
    with pytest.raises(InvalidArgumentError, match="anchor='random' has none"):
        loader(datasets[0], anchor="random")
    with pytest.raises(UnknownNameError, match="goal"):
        loader(datasets[0], goals=Goals(goal_column="goal"))
    with pytest.raises(InvalidArgumentError, match="preset 'gato' makes tokens, and goals have none"):
        loader(datasets[0], preset="gato")


# Transitions


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Episodes with and without final observations."""
    episodes = transitions.episodes_of_every_end()
    return episodes, transitions.convert(episodes, tmp_path_factory.mktemp("ended") / "dataset")


@pytest.mark.parametrize("dtype", [None, "float64", "bfloat16"])
@pytest.mark.parametrize("goals", [Goals(), Goals(negative=False, subgoal_steps=2), Goals(0, 1, 0, future=True)])
def test_rewards_and_masks_say_whether_the_goal_is_reached(ended, goals, dtype):
    with_goals = loader(ended[1], preset="transitions", goals=goals, dtype=dtype, batch_size=64)
    plain = loader(ended[1], preset="transitions", goals=None, dtype=dtype, batch_size=64)
    reached = 0
    for step, (batch, other) in enumerate(islice(zip(with_goals, plain, strict=True), STEPS)):
        table = with_goals.windows(step)
        for row in range(64):
            goal = table["value_goals_episode_id"][row], table["value_goals_step"][row]
            at_goal = goal == (table["episode_id"][row], table["start"][row] + goals.future)
            reached += at_goal
            assert batch["rewards"][row] == float(at_goal) - (1 if goals.negative else 0)
            assert batch["masks"][row] == (other["masks"][row] if goals.future else 1 - float(at_goal))
        for key in ("observations", "actions", "next_observations", "terminated", "valid_count"):
            assert torch.equal(batch[key], other[key]), key
        assert (batch["rewards"].dtype, batch["masks"].dtype) == (other["rewards"].dtype, other["masks"].dtype)
    assert 0 < reached < 64 * STEPS


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("join", [None, False, True])
def test_future_goals_reach_the_final_observation(ended, frames, join):
    episodes, dataset = ended
    source = dataset if join is None else Mixture([(dataset, 1), (dataset.select([0, 1, 3, 6]), 1)], join=join)
    options = {} if frames == 1 else {"offsets": {"observations": (1 - frames, 1)}}
    goals = Goals(0.1, 0.7, 0.2, geometric=False, future=True)
    finals = 0
    future = loader(source, preset="transitions", goals=goals, batch_size=64, prefetch=0, **options)
    for step, batch in enumerate(islice(future, STEPS)):
        table = future.windows(step)
        for key in ("value_goals", "actor_goals"):
            drawn = zip(table[f"{key}_episode_id"].tolist(), table[f"{key}_step"].tolist(), strict=True)
            for row, (episode, at) in enumerate(drawn):
                finals += at == len(episodes[episode]["rewards"])
                stack = transitions.stack(episodes[episode], at, frames)
                expected = stack if frames > 1 else stack[0]
                assert np.array_equal(batch[key][row].numpy(), expected), (step, key, row)
    assert finals > 10


@pytest.mark.parametrize("join", [False, True])
def test_future_goals_of_a_dataset_whose_flags_have_another_name(ended, join):
    options = {"columns": ["observations"], "goals": Goals(0.1, 0.7, 0.2, geometric=False, future=True)}
    rename = {"terminated": "ended", "truncated": "terminated"}
    plain, renamed = (
        loader(Mixture([(ended[1], 1, own), (ended[1], 1)], join=join), **options) for own in ({}, {"rename": rename})
    )
    for batch, other in zip(islice(renamed, STEPS), plain, strict=False):
        assert batch.keys() == other.keys() >= {"value_goals", "actor_goals"}
        assert all(torch.equal(batch[key], other[key]) for key in batch)


def test_goals_and_several_steps_are_refused(ended):
    with pytest.raises(InvalidArgumentError, match="goals relabel the reward of one step, and n_step is 3"):
        loader(ended[1], preset="transitions", n_step=3)
