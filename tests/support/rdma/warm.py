"""Compiles the kernels of the guests into Numba's cache.

Compiling in a guest takes minutes.

warm.py DATASET CACHE
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.dataset.stores.remote import open_remote_store
from gear_data.storage.dataset_files import open_files
from tests.support.rdma import remote_batches

server = FlightServer(ShardServer(open_files(Path(sys.argv[1]))), Address("127.0.0.1", 0), ServerCredentials())
threading.Thread(target=server.serve, daemon=True).start()
store = open_remote_store(f"gear://127.0.0.1:{server.port}", Path(sys.argv[2]), transport="flight")
remote_batches.batches(store.reader(), store.manifest.schema, store.lengths)
# The server's shutdown would wait for its clients, and this process is one.
os._exit(0)
