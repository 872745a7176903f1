"""`gear-data record`: episodes of an environment as a dataset."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gear_data.cli.arguments import add_command, print_json
from gear_data.errors import InvalidArgumentError


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "record episodes of a Gymnasium environment; a killed recording continues"
    parser = add_command(commands, "record", _record, summary, "gear-data record CartPole-v1 cartpole/ --episodes 20")
    parser.add_argument("env_id", metavar="ENV", help="id of the environment, for gymnasium.make")
    help = "folder or s3:// URL of the dataset, which may exist; or gear://HOST:PORT of a server"
    parser.add_argument("destination", metavar="DATASET", help=help)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="number of episodes, default 100")
    help = "function that takes an observation and returns an action, such as agents.ppo:act; default: random actions"
    parser.add_argument("--policy", metavar="MODULE:FUNCTION", help=help)
    help = "the episode with id i is reset with the seed N + i, default 0"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=help)
    help = "also record what the environment renders, as the camera observations.images.render"
    parser.add_argument("--camera", action="store_true", help=help)


def _record(options: argparse.Namespace) -> int:
    from gear_data.recording.record import record_episodes

    policy = None if options.policy is None else _policy(options.policy)
    publication = record_episodes(
        options.env_id, options.destination, options.episodes, policy=policy, seed=options.seed, camera=options.camera,
    )  # fmt: skip
    if publication is None:
        print_json({"episodes": options.episodes}) if options.json else print(f"{options.episodes} episodes recorded")
        return 0
    if options.json:
        print_json(asdict(publication))
        return 0
    print(f"{publication.episodes} episodes, {publication.steps} steps recorded")
    total = f"{publication.total_episodes} episodes, {publication.total_steps} steps"
    print(f"{total} in {options.destination}, generation {publication.generation}")
    return 0


def _policy(text: str) -> Callable[[Any], Any]:
    """Imports a function. The current folder is searched first, as `python -m` does."""
    module, separator, name = text.partition(":")
    if not separator:
        raise InvalidArgumentError(f"--policy must be MODULE:FUNCTION, not {text!r}")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(
            f"--policy {text} cannot be imported: {error}", hint="run the command in the folder of the module"
        ) from error
    if not callable(function):
        raise InvalidArgumentError(f"--policy {text} is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]
