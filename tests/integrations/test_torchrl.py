"""Batches of transitions in TorchRL's losses."""

from __future__ import annotations

import pytest
import torch

from gear_data import ReturnOptions, SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError
from gear_data.integrations.torchrl import to_tensordict
from tests.support.feed import transitions as golden

pytest.importorskip("torchrl")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return golden.convert(golden.episodes_of_every_end(), tmp_path_factory.mktemp("torchrl") / "dataset")


@pytest.fixture(scope="module")
def iql():
    """IQL's loss, as in TorchRL's reference, for 4 observations and 3 actions."""
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import IQLLoss

    class Q(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(7, 1)

        def forward(self, observation, action):
            return self.linear(torch.cat([observation, action], -1))

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), NormalParamExtractor())
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(module=module, in_keys=["loc", "scale"], distribution_class=TanhNormal)
    qvalue = ValueOperator(Q(), in_keys=["observation", "action"])
    loss = IQLLoss(actor, qvalue, ValueOperator(nn.Linear(4, 1), in_keys=["observation"]))
    loss.make_value_estimator(gamma=0.9)
    return loss


@pytest.mark.parametrize("n_step", [None, 3])
def test_an_update_with_the_batchs_targets(dataset, iql, n_step):
    loader = SequenceLoader(
        dataset,
        32,
        preset="transitions",
        returns=ReturnOptions(n_step=n_step, discount=0.9 if n_step else 1.0),
        steps=1,
    )
    batch = next(iter(loader))
    data = to_tensordict(batch)
    assert data.batch_size == torch.Size([32])
    assert data["observation"].data_ptr() == batch["observations"].data_ptr()
    optimizer = torch.optim.Adam(iql.parameters(), 1e-3)
    before = [parameter.detach().clone() for parameter in iql.parameters()]
    losses = iql(data.clone())
    sum(losses[key] for key in ("loss_actor", "loss_qvalue", "loss_value")).backward()
    optimizer.step()
    assert any(not torch.equal(one, other) for one, other in zip(before, iql.parameters(), strict=True))

    # The target that TorchRL computes is the one that the batch says.
    estimator, params = iql.value_estimator, iql.value_network_params
    with torch.no_grad():
        target = estimator.value_estimate(data.clone(), target_params=params)[:, 0]
        with params.to_module(iql.value_network):
            value = iql.value_network(data["next"].clone())["state_value"][:, 0]
    factor = batch["discounts"] if n_step else 0.9 * batch["masks"]
    assert 0 < (factor == 0).sum() < 32
    torch.testing.assert_close(target, batch["rewards"] + factor * value)


def test_flags_requested_columns_and_several_observations(dataset, make_dataset):
    batch = next(iter(SequenceLoader(dataset, 64, preset="transitions", columns=["truncated", "next_actions"])))
    data = to_tensordict(batch)
    assert torch.equal(data["next", "done"][:, 0], batch["terminated"] | batch["truncated"])
    assert torch.equal(data["next", "truncated"][:, 0], batch["truncated"])
    assert torch.equal(data["next", "action"], batch["next_actions"])
    nested = {**batch, "observations.image": batch["actions"], "next_observations.image": batch["actions"]}
    with pytest.raises(InvalidArgumentError, match="cannot have 'observation'"):
        to_tensordict(nested)
    data = to_tensordict({key: value for key, value in nested.items() if not key.endswith("observations")})
    assert data["observation", "image"].shape == data["next", "observation", "image"].shape == (64, 3)


@pytest.mark.parametrize("columns", [["next_terminated"], ["truncated", "next_truncated"]])
def test_no_value_replaces_another(dataset, columns):
    """The flags of a transition are below `next`, where those of the next step would be."""
    batch = next(iter(SequenceLoader(dataset, 64, preset="transitions", columns=columns)))
    with pytest.raises(InvalidArgumentError, match="twice") as error:
        to_tensordict(batch)
    assert error.value.column == columns[-1]
    del batch[columns[-1]]
    assert torch.equal(to_tensordict(batch)["next", "terminated"][:, 0], batch["terminated"])
    with pytest.raises(InvalidArgumentError, match="'observation' twice"):
        to_tensordict({**batch, "observations.image.left": batch["actions"]})
    with pytest.raises(InvalidArgumentError, match="'action' twice"):
        to_tensordict({**batch, "action": batch["actions"]})


def test_other_batches_are_refused(dataset):
    with pytest.raises(MissingColumnError, match="preset='transitions'"):
        to_tensordict({"observations": torch.zeros(3)})
