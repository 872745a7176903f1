"""TorchRL: a batch of transitions as the TensorDict that losses take.

for batch in gear_data.SequenceLoader(dataset, preset="transitions"):
    losses = iql_loss(to_tensordict(batch))
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.transitions import check_transitions

if TYPE_CHECKING:
    from tensordict import TensorDict

#: Keys of a batch that TorchRL computes again from others.
_DERIVED = ("masks", "discounts", "valid_count")
_NAMES = {"observations": "observation", "actions": "action"}


def to_tensordict(batch: Mapping[str, Any]) -> TensorDict:
    """Returns a batch of transitions in the layout of TorchRL's datasets.

    The batch is of preset `transitions`. `observations` becomes `observation`, `next_observations` becomes
    `("next", "observation")`, `observations.image` becomes `("observation", "image")`. Rewards and flags, [B, 1], are
    below `next`. `done` is true at steps that are terminated, or truncated if the batch has `truncated`. With `n_step`,
    `steps_to_next_obs` is there, from which value estimators compute the discount. Other keys keep their names.

    Args:
        batch: key -> tensor [B, ...].

    Returns:
        A TensorDict of batch size [B], over the memory of the batch.

    Raises:
        MissingColumnError: the batch is not of transitions.
        InvalidArgumentError: two keys of the batch have one place, such as `next_terminated` and `terminated`; or the
            batch has `observations` and, for example, `observations.image`.
    """
    from tensordict import TensorDict

    check_transitions(batch)
    terminated = batch["terminated"].bool().unsqueeze(-1)
    truncated = batch.get("truncated")
    following: dict[str, Any] = {"reward": _column(batch["rewards"]), "terminated": terminated, "done": terminated}
    if truncated is not None:
        following["truncated"] = truncated.bool().unsqueeze(-1)
        following["done"] = terminated | following["truncated"]
    tree: dict[str, Any] = {"next": following}
    if "intervals" in batch:
        tree["steps_to_next_obs"] = batch["intervals"].unsqueeze(-1)
    for key, value in batch.items():
        if key in (*_DERIVED, "rewards", "terminated", "truncated", "intervals"):
            continue
        name = key.removeprefix("next_")
        first, *rest = name.split(".") if name.startswith("observations.") else [name]
        _put(following if name != key else tree, [_NAMES.get(first, first), *rest], key, value)
    return TensorDict(tree, batch_size=[len(batch["rewards"])])


def _column(values: Any) -> Any:
    """Returns [B, 1] of [B]."""
    return values.unsqueeze(-1) if values.ndim == 1 else values


def _put(tree: dict[str, Any], path: list[str], key: str, value: Any) -> None:
    """Puts the value of a key of the batch at a path."""
    *folders, name = path
    for folder in folders:
        tree = tree.setdefault(folder, {})
        if not isinstance(tree, dict):
            break
    if not isinstance(tree, dict) or name in tree:
        raise InvalidArgumentError(
            f"a TensorDict cannot have '{path[0]}' twice, and '{key}' of the batch is the second",
            column=key,
            hint="leave the key out: columns=, or batch.pop(...); or rename a column at conversion (--rename)",
        )
    tree[name] = value
