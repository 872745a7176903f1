"""Identity of a loader's windows, and specification of its batches, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gear_data.loaders.arguments.config import LoaderConfig
from gear_data.loaders.builders.batch import RankRows
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.decoding.augmentation import augment_json
from gear_data.loaders.window_source import WindowSource


def loader_identity(
    config: LoaderConfig, components: Sequence[LoaderComponent], source: WindowSource
) -> dict[str, Any]:
    """Returns everything that the windows of a step depend on, JSON-able."""
    names = [component.sampler for component in components]
    return {
        "fingerprint": config.dataset.fingerprint,
        "sampler": names[0] if len(names) == 1 else names,
        "seed": config.seed,
        "batch_size": config.batch_size,
        **config.rule.identity(),
        "discount": config.returns.discount,
        **_steps_left_out(components),
        **({} if config.packing is None else {"pack": dataclasses.asdict(config.packing)}),
        "goals": None if config.goals is None else config.goals.to_json(),
        **source.identity(),
    }


def _steps_left_out(components: Sequence[LoaderComponent]) -> dict[str, Any]:
    """Returns how presets treat steps without a next state, if they do."""
    formats = [component.batch_format.transitions for component in components]
    return {"missing_next": [each and each.missing_next for each in formats]} if any(formats) else {}


def _own_discount(component: LoaderComponent, stated: float) -> dict[str, Any]:
    """Returns the discount of a dataset's returns-to-go, unless the spec states it as the loader's.

    A dataset may have it by `Dataset.with_discount`, and the datasets of a mixture have specs of their own.
    """
    own = component.dataset.discount
    return {} if own == stated else {"returns_to_go_discount": own}


def _cameras(config: LoaderConfig, components: Sequence[LoaderComponent]) -> dict[str, Any]:
    """Returns how cameras are decoded, if the batches have any.

    The sizes are in the outputs.
    """
    if all(output.absent for component in components for output in component.cameras):
        return {}
    from gear_data.video.decoding.backends import decoder_version

    return {"video_decoder": decoder_version(config.video.decoding(None).backend)}


def loader_spec(
    config: LoaderConfig, components: Sequence[LoaderComponent], source: WindowSource, rows: RankRows
) -> dict[str, Any]:
    """Returns everything that batches depend on; see `SequenceLoader.spec`.

    Args:
        config: the arguments of the loader.
        components: its datasets.
        source: samples its windows.
        rows: the rows of this rank.
    """
    stated = config.returns.discount if len(components) == 1 else 1.0
    specs = [{**component.spec(), **_own_discount(component, stated)} for component in components]
    return {
        **loader_identity(config, components, source),
        "pass": rows.layout.identity(),
        "passes": config.passes,
        "preset": components[0].batch_format.name,
        **(specs[0] if len(specs) == 1 else {"datasets": specs}),
        "dtype": config.batch.dtype_name,
        "augment": augment_json(config.batch.augment),
        "transform": getattr(config.transform, "__qualname__", None if config.transform is None else "unnamed"),
        **_cameras(config, components),
        "decoders": {name: getattr(d, "__qualname__", repr(d)) for name, d in config.decoders.items()},
        "rank": rows.rank,
        "world_size": rows.world_size,
    }
