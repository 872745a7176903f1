"""`gear-data plan`."""

from __future__ import annotations

import argparse
from typing import Any

import gear_data
from gear_data.cli.arguments import add_command, add_dataset, names, print_json, size
from gear_data.words import SamplerName


def add_commands(commands: Any) -> None:
    """Declares the commands of this group."""
    summary = "plan which node holds which shards"
    example = "gear-data plan hopper/ --nodes 4 --weights 'exp(return / 1000)' --budget 64G"
    parser = add_command(commands, "plan", _plan, summary, example)
    add_dataset(parser)
    help = "number of nodes, named node-0, node-1, ...; or their names, separated by commas"
    parser.add_argument("--nodes", type=_nodes, required=True, metavar="N|NAMES", help=help)
    help = "weight of each episode's steps: SQL over the episode table; default equal weights"
    parser.add_argument("--weights", metavar="SQL", help=help)
    help = "memory per node, such as 64G; free memory holds replicas of the shards that are drawn most often"
    parser.add_argument("--budget", type=size, metavar="BYTES", help=help)


def _nodes(text: str) -> list[str]:
    """Parses '3' to ['node-0', 'node-1', 'node-2'], and 'a,b' to ['a', 'b']."""
    if not text.isdecimal():
        return names(text)
    width = len(str(max(0, int(text) - 1)))
    # Numbers of equal width sort by value.
    return [f"node-{number:0{width}}" for number in range(int(text))]


def _plan(options: argparse.Namespace) -> int:
    dataset = gear_data.open(options.dataset, convert=options.convert)
    weights = options.weights
    sampler: SamplerName | gear_data.Weighted = "uniform" if weights is None else gear_data.Weighted(weights, by="step")
    placement = dataset.placement(options.nodes, sampler, options.budget)
    if options.json:
        print_json(placement.to_json())
    else:
        print(placement)
    return 0
