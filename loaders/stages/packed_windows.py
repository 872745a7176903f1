"""Packed rows: the texts whose tokens are counted, and the rule that cuts the windows."""

from __future__ import annotations

import numpy as np

from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.arguments.pack import Pack
from gear_data.loaders.presets.batch_format import BatchFormat
from gear_data.loaders.presets.gato.counts import TokenCounts
from gear_data.loaders.presets.outputs import BatchRequest, token_columns
from gear_data.selection.samplers import Weighted
from gear_data.selection.windows import WindowRule


def token_texts(batch_format: BatchFormat, request: BatchRequest, config: LoaderConfig) -> list[str]:
    """Returns the columns of text that become tokens.

    Raises:
        InvalidArgumentError: a column of text or encoded images has no decoder.
    """
    found = []
    for item, column in token_columns(batch_format, request):
        if not item.spec.variable_length:
            continue
        if item.name not in config.decoders:
            what = "a tokenizer" if column.kind == "text" else "gear_data.loaders.decoding.images.ImageDecoder()"
            raise InvalidArgumentError(
                f"preset '{batch_format.name}' makes tokens of the column, and it has no decoder",
                column=item.name,
                hint=f"give decoders={{'{item.name}': {what}}}",
            )
        if column.kind == "text":
            found.append(item.name)
    return found


def packed_rule(
    dataset: Dataset, config: LoaderConfig, packing: Pack, unit: int, counts: TokenCounts | None
) -> WindowRule:
    """Returns the rule that cuts windows for packed rows.

    Args:
        dataset: the dataset.
        config: the arguments, with the dataset's options.
        packing: the rows.
        unit: tokens of a step; with `counts`, the fewest.
        counts: the tokens of windows; None: all steps have `unit`.

    Raises:
        InvalidArgumentError: a window is longer than a row. Also without replacement, as a step has no fixed number of
            windows.
    """
    steps = packing.length // unit
    if isinstance(config.sampler, Weighted) and not config.sampler.replacement:
        raise InvalidArgumentError(
            "replacement=False draws a fixed number of windows, and with pack= a batch has as many as fit",
            hint="give Weighted(..., replacement=True), or sampler='shuffle'",
        )
    if counts is not None:
        return _counted_rule(dataset, config, packing, counts)
    of_a_row = f"pack={packing.length}" + ("" if unit == 1 else f" tokens, {steps} steps of {unit} tokens")
    if packing.split and steps:
        longest = int(dataset.lengths.max(initial=1))
        return WindowRule(longest, longest) if config.context is None else config.rule
    if config.context is not None:
        if config.rule.context > steps:
            raise InvalidArgumentError(
                f"context is {config.rule.context}, and a row has {of_a_row}: a window does not fit",
                file=str(dataset.path),
                hint=f"give context={steps} or less, a larger pack, or Pack(length, split=True)"
                if steps
                else "give a larger pack",
            )
        return config.rule
    longest = int(dataset.lengths.argmax()) if len(dataset) else 0
    if not steps or (len(dataset) and dataset.lengths[longest] > steps and not packing.cut):
        number = longest if dataset.episode_ids is None else int(dataset.episode_ids[longest])
        raise InvalidArgumentError(
            f"episode {number} has {dataset.lengths[longest]} steps, and a row has {of_a_row}: a window does not fit",
            file=str(dataset.path),
            hint="give a larger pack, context=, or Pack(length, cut=True), which cuts longer episodes"
            if steps
            else "give a larger pack",
        )
    return WindowRule(steps, steps)


def _counted_rule(dataset: Dataset, config: LoaderConfig, packing: Pack, counts: TokenCounts) -> WindowRule:
    """Returns the rule of `packed_rule` for steps with unlike numbers of tokens."""
    if packing.split:
        raise InvalidArgumentError(
            "split=True cuts windows between steps, and steps have unlike numbers of tokens",
            hint="leave split out",
        )
    episodes = np.arange(len(counts.first) - 1) if dataset.view.rows is None else np.asarray(dataset.view.rows)
    steps = packing.length // counts.most_of_step
    context = int(dataset.lengths.max(initial=1)) if config.context is None else config.rule.context
    if config.context is None and packing.cut:
        context = min(context, steps)
    most, episode = counts.longest(episodes, context) if context and len(episodes) else (counts.most_of_step, 0)
    if most > packing.length or not context:
        ids = dataset.store.ids
        number = episode if ids is None else int(ids[episode])
        raise InvalidArgumentError(
            f"{'a window of ' if config.context else ''}episode {number} has {most} tokens, and a row has "
            f"pack={packing.length} tokens: a window does not fit",
            file=str(dataset.path),
            hint=("give a larger pack, context=, or Pack(length, cut=True), which cuts longer episodes" if steps else
                  "give a larger pack") if config.context is None else "give a larger pack, or a smaller context",
        )  # fmt: skip
    return WindowRule(context, context) if config.context is None else config.rule
