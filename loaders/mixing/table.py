"""The facts of a mixture: its datasets, the keys of its batches, and what cannot be joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gear_data.collection.output import Output
from gear_data.errors import GearError, naming
from gear_data.loaders.mixture import Mixture, dataset_name
from gear_data.loaders.presets.unlike import DatasetOutputs, check_shapes, joint_outputs
from gear_data.loaders.sequence_loader import SequenceLoader

#: Epochs are of so many batches.
BATCHES = 10**6


def mixture_facts(mixture: Mixture, batch_size: int) -> dict[str, Any]:
    """Returns the facts of a mixture, JSON-able. No step is read, unless an option needs statistics.

    Args:
        mixture: the mixture.
        batch_size: windows of a batch, for the epochs.

    Returns:
        `datasets`: for each dataset `path`, `episodes`, `steps`, `steps_left_out` by filters of steps, `share` of the
        windows, and `epochs`, how often 10^6 batches have as many windows as the dataset has steps that are not left
        out. Both are None if the proportions depend on the step. `keys`: for each key of a batch without a preset its
        `dtype` and `shape` of a step (None if the datasets do not fit), the `shapes` in each dataset (None if it has no
        such key), `padded`, the numbers of the datasets that are padded or lack the key, and `left_out`, whether
        batches leave the key out. `problems`: why the datasets do not make a loader, one text each.
    """
    problems: list[str] = []
    outputs = [_outputs(mixture, number, batch_size, problems) for number in range(len(mixture.components))]
    keys = _keys(mixture, outputs, problems)
    _tried(lambda: SequenceLoader(mixture, batch_size=batch_size, context=1, prefetch=0), problems)
    return {
        "batches": BATCHES,
        "batch_size": batch_size,
        "join": mixture.join,
        "pad_to": mixture.pad_to,
        "statistics": mixture.statistics,
        "datasets": _datasets(mixture, batch_size),
        "keys": keys,
        "problems": problems,
    }


def _tried(make: Callable[[], Any], problems: list[str]) -> Any:
    """Returns what a function makes; None if it fails. The error is a problem."""
    try:
        return make()
    except GearError as error:
        if str(error) not in problems:
            problems.append(str(error))
        return None


def _outputs(mixture: Mixture, number: int, batch_size: int, problems: list[str]) -> DatasetOutputs:
    """Returns the arrays of a dataset's batches without the other datasets."""
    each = mixture.components[number]
    name = dataset_name(number, each.dataset)

    def alone() -> SequenceLoader:
        with naming(name, each.dataset.path):
            own = Mixture([(each.dataset, 1, each.options)])
            return SequenceLoader(own, batch_size=batch_size, context=1, prefetch=0)

    loader = _tried(alone, problems)
    if loader is None:
        return DatasetOutputs(name, ())
    component = loader._stages.newest.components[0]
    return DatasetOutputs(name, component.outputs, text=component.variable)


def _datasets(mixture: Mixture, batch_size: int) -> list[dict[str, Any]]:
    fixed = [each for each in mixture.proportions if isinstance(each, int | float)]
    total = sum(fixed) if len(fixed) == len(mixture.components) else 0
    found = []
    for each in mixture.components:
        dataset = each.dataset
        steps = dataset.num_steps - dataset.steps_left_out
        share = each.proportion / total if total and isinstance(each.proportion, int | float) else None
        facts = {
            "path": str(dataset.path),
            "episodes": dataset.num_episodes,
            "steps": dataset.num_steps,
            "steps_left_out": dataset.steps_left_out,
            "share": share,
            "epochs": None if share is None else share * BATCHES * batch_size / steps,
        }
        found.append(facts)
    return found


def _keys(mixture: Mixture, datasets: Sequence[DatasetOutputs], problems: list[str]) -> list[dict[str, Any]]:
    arrays: dict[str, dict[int, Output]] = {}
    texts: dict[str, list[int]] = {}
    for number, dataset in enumerate(datasets):
        for output in dataset.outputs:
            if output.column:
                arrays.setdefault(output.key, {})[number] = output
        for key in dataset.text.values():
            texts.setdefault(key, []).append(number)
    found = []
    for key, having in arrays.items():
        shapes = [list(having[number].shape) if number in having else None for number in range(len(datasets))]
        found.append({"key": key, "shapes": shapes, **_joint(mixture, datasets, having, problems)})
    for key, numbers in texts.items():
        lacking = [number for number in range(len(datasets)) if number not in numbers]
        left_out = bool(lacking) and mixture.join and mixture.pad_to is None
        padded = lacking if mixture.pad_to is not None else []
        shapes = [[] if number in numbers else None for number in range(len(datasets))]
        found.append(
            {"key": key, "shapes": shapes, "dtype": "text", "shape": [], "padded": padded, "left_out": left_out}
        )
    return found


def _joint(
    mixture: Mixture, datasets: Sequence[DatasetOutputs], having: Mapping[int, Output], problems: list[str]
) -> dict[str, Any]:
    """Returns the facts of a key in batches of all datasets."""
    first = next(iter(having.values()))
    lacking = [number for number in range(len(datasets)) if number not in having]
    facts: dict[str, Any] = {"dtype": first.dtype, "shape": None, "padded": [], "left_out": False}
    described = [
        DatasetOutputs(each.name, [having[number]] if number in having else [])
        for number, each in enumerate(datasets)
    ]  # fmt: skip
    if mixture.pad_to is not None:
        pad_to = mixture.pad_to
        if not isinstance(pad_to, str):
            pad_to = {name: width for name, width in pad_to.items() if name == first.source}
        joint = _tried(lambda: joint_outputs(described, pad_to), problems)
        if joint is not None:
            whole = list(joint[0][0].shape)
            padded = [number for number, output in having.items() if list(output.shape) != whole]
            facts |= {"shape": whole, "padded": sorted({*padded, *lacking})}
    elif not mixture.join:
        same = {tuple(output.shape) for output in having.values()}
        facts["shape"] = list(first.shape) if len(same) == 1 else None
    elif lacking:
        facts["left_out"] = True
    else:
        before = len(problems)
        _tried(lambda: check_shapes(described), problems)
        facts["shape"] = list(first.shape) if len(problems) == before else None
    return facts


def dataset_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    """Returns a table of the datasets, for people: a row of headings, and a row for each dataset."""
    epochs = f"epochs in {facts['batches']:,} batches of {facts['batch_size']:,}"
    rows = [["dataset", "path", "episodes", "steps", "left out", "share", epochs]]
    for number, each in enumerate(facts["datasets"]):
        share, epoch = each["share"], each["epochs"]
        rows.append(
            [
                str(number),
                each["path"],
                f"{each['episodes']:,}",
                f"{each['steps']:,}",
                f"{each['steps_left_out']:,}",
                "by the step" if share is None else f"{100 * share:.3g}%",
                "by the step" if epoch is None else f"{epoch:,.3g}",
            ]
        )
    return rows


def key_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    """Returns a table of the keys of batches, for people: a row of headings, and a row for each key."""
    count = len(facts["datasets"])
    rows = [["key", "dtype", "shape of a step", *(f"dataset {number}" for number in range(count)), ""]]
    for each in facts["keys"]:
        note = ""
        if each["padded"]:
            note = f"padded: {', '.join(map(str, each['padded']))}"
        elif each["left_out"]:
            note = "left out: a dataset lacks it"
        elif facts["join"] and each["shape"] is None:
            note = "cannot be joined"
        shapes = ("-" if shape is None else _shape(shape) for shape in each["shapes"])
        whole = "-" if each["left_out"] or each["shape"] is None else _shape(each["shape"])
        rows.append([each["key"], each["dtype"], whole, *shapes, note])
    return rows


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
