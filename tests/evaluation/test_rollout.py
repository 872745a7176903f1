"""A rollout's inputs are the windows of training batches that end at the same step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gear_data import BatchOptions, Fifo, Mixture, Normalizer, ReturnOptions, Rollout, SequenceLoader, WindowOptions
from gear_data.errors import InvalidArgumentError
from tests.support.feed.data import convert_episodes, locomotion

LENGTHS = [9, 1, 30]
CONTEXT = 7


@pytest.fixture(scope="module")
def episodes():
    return locomotion(LENGTHS, seed=3)


@pytest.fixture(scope="module")
def dataset(episodes, tmp_path_factory):
    return convert_episodes(episodes, tmp_path_factory.mktemp("rollout") / "dataset")


def loader_of(dataset, **options):
    """A loader whose batch is every window that ends at a step, in order."""
    options = {
        "context": CONTEXT,
        "windows": WindowOptions(anchor="end"),
        "normalize": True,
        "sampler": Fifo(),
        "prefetch": 0,
        **options,
    }
    return SequenceLoader(dataset, sum(LENGTHS), epochs=1, **options)


def inputs_of_episodes(loader, episodes):
    """Plays the episodes again; returns the inputs of each step, and whether the step is an episode's first."""
    spec = json.loads(json.dumps(loader.spec()))
    every = []
    for episode in episodes:
        rollout = Rollout.from_spec(spec, target=float(episode["rewards"].astype(np.float64).sum()))
        rollout.reset(episode["observations"][0])
        for step in range(len(episode["rewards"])):
            every.append(rollout.inputs())
            following = episode["observations"][min(step + 1, len(episode["rewards"]) - 1)]
            rollout.update(episode["actions"][step], episode["rewards"][step], following)
    return every


@pytest.mark.parametrize(
    ("preset", "unknown"),
    [
        ("decision_transformer", {"actions", "rewards"}),
        ("corl", {"actions"}),
        ("d3rlpy", {"actions", "rewards", "terminals"}),
        ("jat", {"actions"}),
        ("raw", {"actions", "rewards", "terminated", "truncated"}),
    ],
)
def test_inputs_are_the_windows_of_batches(dataset, episodes, preset, unknown):
    loader = loader_of(dataset, preset=preset)
    (batch,) = loader
    lengths = batch["valid_count"].numpy()
    pads_left = loader.spec()["batch_format"]["side"] == "left"
    every = inputs_of_episodes(loader, episodes)
    assert len(every) == len(lengths)
    for row, inputs in enumerate(every):
        assert set(inputs) == set(batch) - {"valid_count"}
        current = CONTEXT - 1 if pads_left else lengths[row] - 1
        for key, array in inputs.items():
            expected = batch[key].numpy()[row].copy()
            assert array.shape == (1, *expected.shape), key
            assert array.dtype == expected.dtype, key
            if key in unknown:
                # Padding of `jat` repeats the first step.
                expected[... if preset == "jat" and lengths[row] == 1 else current] = 0
            np.testing.assert_allclose(array[0], expected, rtol=1e-5, atol=1e-4, err_msg=f"{key} of row {row}")


def test_a_range_of_observations_without_the_actions_to_predict(dataset, episodes):
    offsets = {"observations": (-2, 1), "actions": (0, 4)}
    loader = loader_of(dataset, context=1, offsets=offsets, columns=["observations", "actions"])
    (batch,) = loader
    for row, inputs in enumerate(inputs_of_episodes(loader, episodes)):
        assert "actions" not in inputs
        for key in ("observations", "observations_mask"):
            np.testing.assert_allclose(inputs[key][0], batch[key][row], rtol=1e-6, err_msg=f"{key} of row {row}")


def test_a_preset_of_chunks(dataset, episodes):
    """As the hint of the error says."""
    with pytest.raises(InvalidArgumentError, match="windows of several steps") as error:
        Rollout.from_spec(loader_of(dataset, context=4, preset="groot").spec())
    assert "with offsets for the columns of several steps: {'actions': (0, 16)}" in error.value.hint
    loader = loader_of(dataset, context=1, preset="groot", offsets={"actions": (0, 16)})
    (batch,) = loader
    every = inputs_of_episodes(loader, episodes)
    assert len(every) == sum(LENGTHS) and "action" not in every[0] and "state" in every[0]
    for row, inputs in enumerate(every):
        np.testing.assert_allclose(inputs["state"][0], batch["state"][row], rtol=1e-5, atol=1e-5, err_msg=f"row {row}")
    rollout = Rollout.from_spec(loader.spec())
    rollout.reset(episodes[0]["observations"][0])
    assert rollout.action(np.zeros((16, 132))).tolist() == [0, 0, 0]


def test_listed_steps_of_observations_and_actions(dataset, episodes):
    offsets = {"observations": [-3, 0], "actions": [0, 2]}
    loader = loader_of(dataset, context=1, preset="lerobot", offsets=offsets, columns=["observations", "actions"])
    (batch,) = loader
    for row, inputs in enumerate(inputs_of_episodes(loader, episodes)):
        assert "action" not in inputs
        for key in ("observation.state", "observation.state_is_pad"):
            np.testing.assert_allclose(inputs[key][0], batch[key][row], rtol=1e-6, err_msg=f"{key} of row {row}")
    rollout = Rollout.from_spec(loader.spec())
    rollout.reset(episodes[0]["observations"][0])
    assert rollout.action(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist() == [1.0, 2.0, 3.0]
    # Of a range that begins later, the last step was the current one.
    for steps in ([2, 5], (1, 3)):
        late = loader_of(dataset, context=1, offsets={"actions": steps}, columns=["observations", "actions"])
        rollout = Rollout.from_spec(late.spec())
        rollout.reset(episodes[0]["observations"][0])
        with pytest.raises(InvalidArgumentError, match="without the current step"):
            rollout.action(np.zeros((2, 3)))
        assert rollout.action(np.ones(3)).tolist() == [1, 1, 1]


def test_transitions_have_no_next_observations_yet(dataset, episodes):
    loader = SequenceLoader(
        dataset, 8, preset="transitions", returns=ReturnOptions(n_step=3, discount=0.9), normalize=True
    )
    for inputs, observation in zip(
        inputs_of_episodes(loader, episodes),
        np.concatenate([episode["observations"] for episode in episodes]),
        strict=True,
    ):
        assert set(inputs) == {"observations", "actions"}
        expected = loader.normalizer.normalize("observations", observation)
        np.testing.assert_allclose(inputs["observations"][0], expected, rtol=1e-5, atol=1e-6)


def test_the_action_is_the_current_steps_in_the_units_of_the_environment(dataset, episodes):
    for preset, options in (("decision_transformer", {}), ("corl", {}), ("raw", {"context": 1})):
        loader = loader_of(dataset, preset=preset, normalize="actions", **options)
        statistics = dataset.statistics["actions"]
        epsilon = 0 if preset == "raw" else 1e-6
        rollout = Rollout.from_spec(loader.spec(), target=1.0)
        context = options.get("context", CONTEXT)
        predicted = np.arange(context * 3, dtype=np.float32).reshape(1, context, 3)
        rollout.reset(episodes[0]["observations"][0])
        rollout.update(episodes[0]["actions"][0], 0.0, episodes[0]["observations"][1])
        current = min(1, context - 1) if preset == "corl" else -1
        expected = predicted[0, current] * (statistics.std + epsilon) + statistics.mean
        np.testing.assert_allclose(rollout.action(predicted), expected, rtol=1e-5)


def test_predictions_of_another_shape(dataset, episodes):
    """They were cut into steps of the batches' width: into other actions, if the numbers allowed it."""
    wide = loader_of(dataset, context=1, preset="groot", offsets={"actions": (0, 16)})
    narrow = loader_of(dataset, preset="corl")
    for loader, shape, message in (
        (wide, (1, 132, 3), r"shape \(1, 132, 3\), and an action of the batches \(132,\)"),
        (wide, (1, 16, 3), r"shape \(1, 16, 3\), and an action"),
        (wide, (2, 16, 132), "has 32 steps, and not the 16 of a window"),
        (narrow, (1, 3, CONTEXT), r"shape \(1, 3, 7\), and an action of the batches \(3,\)"),
        (narrow, (1, 0, 3), "has 0 steps"),
    ):
        rollout = Rollout.from_spec(loader.spec(), target=1.0)
        rollout.reset(episodes[0]["observations"][0])
        with pytest.raises(InvalidArgumentError, match=message):
            rollout.actions(np.zeros(shape))
    rollout = Rollout.from_spec(narrow.spec(), target=1.0)
    rollout.reset(episodes[0]["observations"][0])
    for step in range(2):
        rollout.update(episodes[0]["actions"][step], 0.0, episodes[0]["observations"][step + 1])
    with pytest.raises(InvalidArgumentError, match="has 2 steps, and not the 7"):
        rollout.action(np.zeros((1, 2, 3)))
    for shape in ((3,), (1, 1, 3), (1, 3, 3), (1, CONTEXT, 3)):
        assert rollout.action(np.zeros(shape)).tolist() == [0, 0, 0]


def test_an_environment_may_use_its_arrays_again(dataset, episodes):
    rollouts = [Rollout.from_spec(loader_of(dataset, preset="decision_transformer").spec(), target=1.0) for _ in "ab"]
    observation, action = np.zeros(4, np.float32), np.zeros(3, np.float32)
    for step in range(4):
        observation[:] = episodes[0]["observations"][step]
        for rollout, own in zip(rollouts, (observation, observation.copy()), strict=True):
            if step == 0:
                rollout.reset(own)
            else:
                action[:] = episodes[0]["actions"][step - 1]
                rollout.update(action if own is observation else action.copy(), 0.5, own)
    action[:] = observation[:] = 99
    one, other = (rollout.inputs() for rollout in rollouts)
    assert all(np.array_equal(one[key], other[key]) for key in other)


def test_a_target_with_a_discount(dataset, episodes):
    loader = loader_of(dataset, preset="decision_transformer", returns=ReturnOptions(discount=0.9))
    rollout = Rollout.from_spec(loader.spec(), target=100.0)
    rollout.reset(episodes[0]["observations"][0])
    rollout.update(episodes[0]["actions"][0], 10.0, episodes[0]["observations"][1])
    assert rollout.inputs()["returns_to_go"][0, -2:, 0] == pytest.approx([0.1, 0.1])  # (100 - 10) / 0.9
    assert "returns_to_go_discount" not in loader.spec()


def test_a_target_with_the_discount_of_a_dataset(dataset, episodes):
    """Also of a dataset that has it by `with_discount`, and of those of a mixture."""
    options = {"context": CONTEXT, "preset": "decision_transformer", "prefetch": 0}
    discounted = dataset.with_discount(0.9)
    own = SequenceLoader(discounted, 8, **options).spec()
    mixed = SequenceLoader(Mixture([dataset, discounted]), 8, **options).spec()["datasets"]
    shared = SequenceLoader(Mixture([dataset] * 2), 8, returns=ReturnOptions(discount=0.9), **options).spec()
    for spec, after in ((own, 0.1), (mixed[0], 0.09), (mixed[1], 0.1), (shared["datasets"][1], 0.1)):
        rollout = Rollout.from_spec(json.loads(json.dumps(spec)), target=100.0)
        rollout.reset(episodes[0]["observations"][0])
        rollout.update(episodes[0]["actions"][0], 10.0, episodes[0]["observations"][1])
        assert rollout.inputs()["returns_to_go"][0, -2:, 0] == pytest.approx([0.1, after])
    with pytest.raises(InvalidArgumentError, match=r"give one of spec\['datasets'\]"):
        Rollout.from_spec(shared, target=100.0)


def test_arrays_that_choose_draws(dataset, episodes):
    """The inputs had the keys of the columns, and lacked the key that the model knows."""
    options = {"preset": "raw", "columns": ["actions", "rewards"], "choose": {"one": ["observations"]}}
    spec = json.loads(json.dumps(loader_of(dataset, **options).spec()))
    with pytest.raises(InvalidArgumentError, match=r"(?s)'one' among observations.*\{\*\*spec, 'choose': \{\}\}"):
        Rollout.from_spec(spec)
    rollout = Rollout.from_spec({**spec, "choose": {}})
    rollout.reset(episodes[0]["observations"][0])
    batch = next(iter(loader_of(dataset, **options, framework="numpy")))
    np.testing.assert_allclose(rollout.inputs()["observations"][0], batch["one"][0], rtol=1e-5, atol=1e-6)
    # A fact is no array of the model's inputs.
    options["choose"] = {"number": ["episode_id", "length"]}
    rollout = Rollout.from_spec(loader_of(dataset, **options).spec())
    rollout.reset(episodes[0]["observations"][0])
    assert rollout.inputs().keys() == {"actions", "rewards", "mask", "timesteps"}


def test_observations_are_clipped_as_in_batches(dataset):
    """By groot, if `minmax` or `quantiles` normalises them: an environment goes beyond the dataset's range."""
    options = {"context": 1, "preset": "groot", "offsets": {"actions": (0, 16)}}
    plain = BatchOptions(preset_options={"clip": 0.0})
    for normalize, more, clipped in (
        ({"observations": "minmax"}, {}, True), (True, {}, False), ({"observations": "minmax"}, {"batch": plain}, False)
    ):  # fmt: skip
        loader = loader_of(dataset, normalize=normalize, **options, **more)
        rollout = Rollout.from_spec(json.loads(json.dumps(loader.spec())))
        rollout.reset(np.array([1e3, -1e3, 1e3, -1e3]))
        state = rollout.inputs()["state"]
        assert state.dtype == np.float32 and not state[..., 4:].any()
        assert (state[0, 0, :4].tolist() == [1, -1, 1, -1]) == clipped
        assert ("clipped" in loader.spec()) == clipped


def test_errors(dataset, episodes):
    spec = loader_of(dataset, preset="decision_transformer").spec()
    with pytest.raises(InvalidArgumentError, match="needs a target"):
        Rollout.from_spec(spec)
    with pytest.raises(InvalidArgumentError, match=r"not Dataset(.|\n)*Rollout\.from_spec"):
        Rollout(dataset)
    for taken in (loader_of(dataset, preset="decision_transformer"), dataset, 3):
        for kind in (Rollout, Normalizer):
            with pytest.raises(InvalidArgumentError, match=rf"(?s)returns, not .*{kind.__name__}\.from_spec\(loader"):
                kind.from_spec(taken)
    with pytest.raises(InvalidArgumentError, match="target must be a number, not 'high'"):
        Rollout.from_spec(spec, target="high")
    for discount, message in ((0, "a discount of 0"), ("0.9", "must be a number"), (2, "from 0 to 1")):
        with pytest.raises(InvalidArgumentError, match=message):
            Rollout.from_spec({**spec, "discount": discount}, target=1.0)
    # Without returns-to-go the discount does not matter.
    spec_of_zero = loader_of(dataset, preset="raw", columns=["rewards"], returns=ReturnOptions(discount=0)).spec()
    rollout = Rollout.from_spec(spec_of_zero)
    rollout.reset(episodes[0]["observations"][0])
    rollout.update(episodes[0]["actions"][0], 2.0, episodes[0]["observations"][1])
    assert rollout.inputs()["rewards"][0, :2].tolist() == [2, 0]
    rollout = Rollout.from_spec(spec, target=1.0)
    with pytest.raises(InvalidArgumentError, match="has not begun"):
        rollout.inputs()
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\), and the training data had \(4,\)"):
        rollout.reset(np.zeros(3))
    with pytest.raises(InvalidArgumentError, match="does not have this column"):
        rollout.reset({"state": np.zeros(4)})
    with pytest.raises(InvalidArgumentError, match="makes tokens"):
        Rollout.from_spec(loader_of(dataset, preset="gato", normalize=None).spec())
    with pytest.raises(InvalidArgumentError, match="train with context=1"):
        Rollout.from_spec(loader_of(dataset, offsets={"observations": (-1, 1)}).spec())
    with pytest.raises(InvalidArgumentError, match="not an output of a batch"):
        Rollout.from_spec({**spec, "outputs": [{"key": "states"}]}, target=1.0)
