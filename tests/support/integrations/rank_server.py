"""Server that forks the ranks of training scripts, with slow modules imported.

    python -m tests.support.integrations.rank_server

Reads a request from each line of standard input, and writes a line with the ranks' exit statuses. A request says what
to import before forking, so that ranks need not import it themselves.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from tests.support.integrations import recorder

Request = dict[str, Any]
#: Seconds that the ranks of a request may take.
LIMIT = 120
#: Seconds after the failure of a rank in which the others may fail, too.
GRACE = 10


def run(request: Request) -> list[int]:
    """Runs the ranks of a request; returns their statuses, -9 for a killed rank."""
    for module in request["imports"]:
        importlib.import_module(module)
    reading, writing = os.pipe()
    ranks = {fork(request, rank, writing): rank for rank in range(request["world_size"])}
    os.close(writing)
    statuses: dict[int, int] = {}
    arrived, end = 0, time.monotonic() + LIMIT
    while len(statuses) < len(ranks):
        if select.select([reading], [], [], 0.01)[0] and os.read(reading, 1):
            arrived += 1
        if any(statuses.values()):
            end = min(end, time.monotonic() + GRACE)
        late = time.monotonic() > end
        if arrived == len(ranks) or late:
            # All of them wait in the step at which they are to be killed; or one failed, and the others wait for it.
            if late:
                for process in ranks.keys() - statuses.keys():
                    os.kill(process, signal.SIGUSR1)  # its log says where it is
                time.sleep(1)
            for process in ranks.keys() - statuses.keys():
                os.kill(process, signal.SIGKILL)
        for process in ranks.keys() - statuses.keys():
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = os.waitstatus_to_exitcode(status)
    os.close(reading)
    return [statuses[process] for process in ranks]


def fork(request: Request, rank: int, arrivals: int) -> int:
    """Starts one rank; returns the number of its process."""
    process = os.fork()
    if process == 0:
        run_rank(request, rank, arrivals)
    return process


def run_rank(request: Request, rank: int, arrivals: int) -> NoReturn:
    """Runs the script as torchrun would, with a log; ends this process."""
    status = 1
    try:
        log = os.open(f"{request['records']}/rank-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        faulthandler.register(signal.SIGUSR1)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        if request["world_size"] > 1:
            size = str(request["world_size"])
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(request["port"]), TORCHELASTIC_RUN_ID="test")
        recorder.start(f"{request['records']}/rank-{rank}.npy", request["kill_at"], arrivals)
        sys.argv = [request["script"], *request["arguments"]]
        runpy.run_path(request["script"], run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    # Modules that are imported may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
