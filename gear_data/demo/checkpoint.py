"""Checkpoints of training: safetensors files with JSON metadata; nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gear_data.errors import ResumeError
from gear_data.storage.atomic import atomic_file, write_text

_VERSION = 1
#: Key of the JSON text among a file's metadata.
_META = "gear"


def write_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
    """Writes tensors and JSON-able facts as one file, whole or not at all.

    Raises:
        StorageFullError: the disk is full; an earlier checkpoint of that name is still there.
    """
    from safetensors.torch import save_file

    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        save_file(contiguous, temporary, metadata={_META: json.dumps({"version": _VERSION, **meta})})


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint.

    Raises:
        ResumeError: no checkpoint there, or one that cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ResumeError("there is no checkpoint", file=str(path), hint="start the run without resuming")
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {})[_META])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, KeyError, ValueError) as error:
        raise ResumeError(f"not a checkpoint of gear-data: {error}", file=str(path)) from error
    if meta.get("version") != _VERSION:
        raise ResumeError(f"the checkpoint has version {meta.get('version')!r}, not {_VERSION}", file=str(path))
    return tensors, meta


def save_model(model: Any, folder: Path) -> tuple[Path, Path]:
    """Writes `config.json` and `model.safetensors`, which `DecisionTransformerModel.from_pretrained(folder)` reads.

    Raises:
        StorageFullError: the disk is full.
    """
    from safetensors.torch import save_file

    config, weights = folder / "config.json", folder / "model.safetensors"
    write_text(config, model.config.to_json_string())
    with atomic_file(weights) as temporary:
        save_file({name: t.contiguous() for name, t in model.state_dict().items()}, temporary, {"format": "pt"})
    return config, weights
