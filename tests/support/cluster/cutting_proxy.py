"""A TCP proxy that cuts connections."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Forwards connections to a port of this machine, and cuts the first ones after some bytes.

    Args:
        port: where the connections go.
        cuts: number of connections to cut.
        most_bytes: a connection is cut after fewer bytes than these, in one of its directions.
        seed: of the random numbers.
    """

    def __init__(self, port: int, cuts: int, most_bytes: int, seed: int) -> None:
        self._target = port
        self.cuts = cuts
        self._most_bytes = most_bytes
        self._choose = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            limits = [1 << 62, 1 << 62]
            if self.cuts:
                # Answers have few bytes.
                direction = self._choose.randrange(2)
                limits[direction] = self._choose.randrange(self._most_bytes if direction == 0 else 400)
            for number, (source, target) in enumerate(((near, far), (far, near))):
                arguments = (source, target, limits[number])
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data[:limit])
                limit -= len(data)
                if limit <= 0:
                    self.cuts -= 1
                    break
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
