"""Runs a Python program in a fork of `fork_server`.

    python -IS fork_client.py SOCKET EXECUTABLE [ARGUMENTS OF python]

The program has this process's files, folder, variables and cores. EXECUTABLE becomes its `sys.executable`. If this
process is killed, the program is killed, too, a little later: read its output to the end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def open_files(server: socket.socket) -> list[int]:
    """Returns the descriptors of this process, without the connection."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the descriptor of the listing itself
        if int(name) != server.fileno():
            found.append(int(name))
    return found


def main() -> int:
    place, executable, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        files = open_files(server)
        request = json.dumps(
            {
                "executable": executable,
                "arguments": arguments,
                "files": files,
                "folder": os.getcwd(),
                "variables": dict(os.environ),
                "cores": sorted(os.sched_getaffinity(0)),
            }
        ).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], files)
        server.sendall(request)
        answer = server.recv(4)
    if not answer:
        return 255
    status = int.from_bytes(answer, "big", signed=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
