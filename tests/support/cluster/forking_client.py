"""A process that reads from two nodes, loses both, and forks while it keeps the error of the last.

Other code of a process may use gRPC as well, for example Ray. So it is a process of its own. It prints the warnings.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
from pathlib import Path

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import NodeUnreachableError
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed.batches import clones


def main(folder: str, end: str) -> None:
    nodes = [NodeProcess(Path(folder)) for _ in range(2)]
    try:
        for node in nodes:
            node.wait()
        batches = iter(SequenceLoader(gear_data.open(url(*nodes)), batch_size=8, context=5, seed=2, prefetch=0))
        clones(itertools.islice(batches, 3))
        gc.disable()
        getattr(nodes[0], end)()
        clones([next(batches) for _ in range(6)])
        getattr(nodes[1], end)()
        try:
            clones(batches)
        except NodeUnreachableError as error:
            kept = error
        if (child := os.fork()) == 0:
            os._exit(0)
        print(os.waitpid(child, 0)[1], kept.__traceback__ is not None)
    finally:
        for node in nodes:
            node.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
