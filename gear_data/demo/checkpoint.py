"""Checkpoints of training: safetensors files with JSON metadata, without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gear_data.errors import ResumeError
from gear_data.storage.atomic import atomic_file, write_text

_VERSION = 1
#: Key of the JSON text in a file's metadata.
_META = "gear"


def write_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
    """Writes tensors and JSON-able metadata as one file, atomically.

    Raises:
        StorageFullError: the disk is full; an earlier checkpoint at `path` is kept.
    """
    from safetensors.torch import save_file

    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        save_file(contiguous, temporary, metadata={_META: json.dumps({"version": _VERSION, **meta})})


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns the tensors and the metadata of a checkpoint.

    Raises:
        ResumeError: `path` has no checkpoint, or an invalid one.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ResumeError("there is no checkpoint", file=str(path), hint="start the run without resuming")
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {})[_META])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, KeyError, ValueError) as error:
        raise ResumeError(
            f"not a checkpoint of gear-data: {error}",
            file=str(path),
            hint="resume from another checkpoint, or start the run again",
        ) from error
    if meta.get("version") != _VERSION:
        raise ResumeError(
            f"the checkpoint has version {meta.get('version')!r}, not {_VERSION}",
            file=str(path),
            hint="resume it with the version of gear-data that wrote it",
        )
    return tensors, meta


def save_model(model: Any, folder: Path) -> tuple[Path, Path]:
    """Writes a model for `DecisionTransformerModel.from_pretrained(folder)`.

    The files are `config.json` and `model.safetensors`.

    Returns:
        The paths of both files.

    Raises:
        StorageFullError: the disk is full.
    """
    from safetensors.torch import save_file

    config, weights = folder / "config.json", folder / "model.safetensors"
    write_text(config, model.config.to_json_string())
    with atomic_file(weights) as temporary:
        save_file({name: t.contiguous() for name, t in model.state_dict().items()}, temporary, {"format": "pt"})
    return config, weights
