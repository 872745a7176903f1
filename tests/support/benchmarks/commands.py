"""The commands by which tests run every benchmark, with all its options.

Sizes are the smallest. `tests/benchmarks/test_completeness.py` compares the commands with the parsers of the
benchmarks. Tests fill in the names in braces.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType

import gear_data

BENCHMARKS = Path(gear_data.__file__).resolve().parent.parent / "benchmarks"

#: Name -> command.
COMMANDS = {
    "selection": "selection.py --episodes 1000 --json {json}",
    "selection of some kinds": "selection.py --kinds fifo topk --episodes 200 400 --json {json}",
    "refresh costs": "selection.py --refresh --episodes 300 --json {json}",
    "loaders by sampler": "selection.py --loaders --episodes 400 --rounds 1 --scratch {scratch} --json {json}",
    "sparse dataset": "selection.py --sparse --episodes 200 1000 --scratch {scratch} --json {json}",
    "conversion": "convert.py --quick --json {json}",
    "conversion of a source": "convert.py --quick --source {source} --repetitions 2 --scale 2 --shard-bytes 4000000 "
    "--small-shard-bytes 1000000 --scratch {scratch} --json {json}",
    "layouts": "convert.py --quick --layout all --json {json}",
    "small things": "convert.py --quick --small --json {json}",
    "numbers of jobs": "convert.py --quick --jobs --json {json}",
    "two layouts": "convert.py --quick --layout minari --layout lerobot --json {json}",
    "cluster": "cluster.py --quick --json {json}",
    "rdma": "rdma.py --rounds 3 --json {json}",
    "learning": "learning.py --quick --source {source} --env Pendulum-v1 --targets -200 -1000 --json {json}",
    "learning of one policy": "learning.py --quick --source {source} --env Pendulum-v1 --only dt --targets -200 "
    "--runs dropout --seeds 1 --episodes 1 --bc-steps 1 --dt-steps 1",
    "scale": "scale.py",
    "scale by another run": "scale.py --flight {cluster} --read-ns 50 --wire 10 --local 5 --ranks 2 --windows 32 "
    "--context 5",
    "feed": "feed.py --quick --all --shapes hopper-256x20,g1-26+26,transitions-256,goals-256 --python torchrl={python} "
    "--python d3rlpy={python} --python flashbax={python} --python hf={python} --json {json}",
    "other shapes": "feed.py --quick --shapes hopper-256x20-large,hopper-64x20,hopper-16x5,hopper-64x100,"
    "hopper-64x100-large,hopper-64x1000,hopper-64x1000-large,frames-32x16,wide-256x20 --peers gear --seed 1 "
    "--json {json}",
    "options of loaders": "feed.py --quick --shapes shifts-256,stacks-256x20,priorities-256 --python torchrl={python} "
    "--charts {charts} --json {json}",
    "gear-data only": "feed.py --quick --source hopper={source} --shapes hopper-64x100 --wait --leak --profile "
    "--seconds 0.02 --repetitions 2 --leak-batches 2000 --json {json}",
    "another checkout": "feed.py --quick --shapes hopper-64x100 --against {checkout} --json {json}",
    "stages of another checkout": "feed.py --quick --shapes hopper-64x100 --against {checkout} --profile --json {json}",
    "a peer that cannot be installed": "feed.py --quick --shapes hopper-64x100 --peers hf --install "
    "--venvs {scratch}/venvs --json {json}",
    "tuning": "tune.py --quick --steps 4000 --seconds 0.5 --rounds 1 --run-seconds 0.005 --json {json}",
    "reports": "report.py --quick --steps 3000 --rounds 1 --json {json}",
    "relative statistics": "relative_statistics.py --quick --frames 4000 --loop-frames 500 --processes 1 "
    "--scratch {scratch} --json {json}",
    "video": "video.py --quick --codecs av1 --frames 60 --seconds 0.02 --rounds 1 --cold-batches 1 --resize 0 "
    "--seed 1 --install --venvs {scratch}/venvs --json {json}",
    "memory of video": "video.py --quick --codecs h264 --leak --leak-batches 8 --python lerobot={python} --json {json}",
    "training by LeRobot": "lerobot_train.py --quick --codecs av1 --frames 40 --seconds 0.02 --rounds 1 --step 0.01 "
    "--workers 0 --backend pyav --seed 1 --install --venvs {scratch}/venvs --json {json}",
    "training by LeRobot, elsewhere": "lerobot_train.py --quick --python lerobot-0.6={python} --json {json}",
    "in place": "in_place.py --quick --layouts v3.0,v2.1 --codec mpeg4 --episodes 3 --batch-size 2 --steps 4 "
    "--step 0.01 --latency 0.001 --bandwidth 50 --rounds 1 --seed 1 --install --venvs {scratch}/venvs --json {json}",
    "in place, elsewhere": "in_place.py --quick --layouts v3.0 --python lerobot-0.6={python} --json {json}",
    "recorders": "writer.py --quick --install --venvs {scratch}/venvs --python torchrl={python} "
    "--python flashbax={python} --python minari={python} --json {json}",
    "some recorders": "writer.py --quick --recorders gear-episode,lerobot --seconds 0.02 --rounds 2 --environments 2 "
    "--fill 2000 --rate 1000 --seed 1 --json {json}",
    "packed rows": "mixture.py --quick --only packed --steps 2 --rows 2 3 --rounds 1 --data {scratch}/data "
    "--json {json}",
    "joined batches": "mixture.py --quick --only joined --datasets 1 2 --frames 8 --rss-batches 200 "
    "--install --venvs {scratch}/venvs --json {json}",
    "joined batches beside peers": "mixture.py --quick --only joined --datasets 1 --frames 4 --peer-steps 50 "
    "--peer-seconds 0.01 --python lerobot={python} --python tensorflow={python} --json {json}",
    "first batches": "first_batch.py --rounds 1 --json {json}",
    "augmentations": "augment.py --quick --json {json}",
    "host of a GPU": "host_cost.py --quick --json {json}",
    "no GPU": "gpu.py --quick --json {json}",
    # By a stand-in for CuPy.
    "GPU": "gpu.py --only a,b,c,d,e,f,g,h,i,j --quick --seconds 460 --json {json}",
    "GPU results": "gpu.py --write-results {json}",
}

#: Scripts without options, and the command that runs each.
WITHOUT_OPTIONS = {"raw_flight.py": "cluster"}


def module_of(script: str) -> ModuleType:
    """Imports a benchmark. pytest puts the folder of benchmarks on the path."""
    return importlib.import_module(script.removesuffix(".py"))


def parser_of(script: str) -> ArgumentParser:
    parser: ArgumentParser = module_of(script).make_parser()
    return parser
