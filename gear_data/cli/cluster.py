"""`gear-data plan`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.parsing import add_command, names, print_json, size


def add_commands(commands: Any) -> None:
    _add_plan(commands)


def _add_plan(commands: Any) -> None:
    summary = "say which node should hold which shards"
    example = "gear-data plan hopper/ --nodes 4 --weights 'exp(return / 1000)' --budget 64G"
    parser = add_command(commands, "plan", _plan, summary, example)
    parser.add_argument("dataset", metavar="DST")
    help = "how many there are (then they are node-0, node-1, ...), or their names, separated by commas"
    parser.add_argument("--nodes", type=_nodes, required=True, metavar="N|NAMES", help=help)
    help = "how often each step is drawn: SQL over the episode table; default all equally often"
    parser.add_argument("--weights", metavar="SQL", help=help)
    help = "memory of a node, such as 64G; what is left of it is filled with copies of what is drawn most often"
    parser.add_argument("--budget", type=size, metavar="BYTES", help=help)


def _nodes(text: str) -> list[str]:
    if not text.isdecimal():
        return names(text)
    width = len(str(max(0, int(text) - 1)))
    # Of equal width, so that they are sorted as they are counted.
    return [f"node-{number:0{width}}" for number in range(int(text))]


def _plan(options: argparse.Namespace) -> int:
    dataset = gear_data.open(options.dataset)
    sampler = "uniform" if options.weights is None else gear_data.Weighted(options.weights, by="step")
    placement = dataset.placement(options.nodes, sampler, options.budget)
    if options.json:
        print_json(placement.to_json())
    else:
        print(placement)
    return 0
