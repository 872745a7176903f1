"""Device memory that the processes of one machine share.

The first process that needs some contents on a device fills the memory, and the others map it. Each process holds a
file descriptor of the memory, and passes it to any process of the user that connects to its socket. Descriptors of the
driver cannot be opened through /proc, as shared memory can, and `pidfd_getfd` is forbidden in most containers.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from gear_data.common.file_lock import locked
from gear_data.errors import DeviceError, DeviceMemoryError
from gear_data.residency.device.memory import DeviceBuffer, allocated
from gear_data.residency.device.virtual_memory import VirtualMemory, sharing_id
from gear_data.residency.shared_memory_registry import registry_folder, remove_ended

# Errors are logged as text: their tracebacks would keep memory.
_log = logging.getLogger(__name__)
#: Seconds that a holder may take to answer. A stopped process does not answer, nor does a forked child of a dead one.
_TIMEOUT = 5.0


def shared_device_memory(key: str, size: int, device: int, fill: Callable[[int], None]) -> VirtualMemory | DeviceBuffer:
    """Returns device memory with some contents, shared by processes.

    The memory is freed when the last process that uses it ends or drops it. If a process is killed, also the one that
    filled the memory, the others keep it. A process that cannot share makes a copy, with a line in the log.

    Args:
        key: a name for the contents, fit for a file's name; ASCII, at most 48 characters.
        size: bytes.
        device: the number of the current device.
        fill: writes the contents to an address on the device, and waits until they are there.

    Raises:
        DeviceMemoryError: the device has too little memory.
        Exception: any error of `fill`.
    """
    with ExitStack() as stack:
        try:
            uuid = sharing_id(device)
            if uuid is None:
                raise DeviceError(f"CUDA device {device} or its driver does not support it")
            folder = registry_folder()
            name = f"{key}-{uuid[:16]}"
            stack.enter_context(locked(folder / f"{name}.lock"))
        except (DeviceError, OSError) as error:
            _log.warning("device memory is not shared with other processes: %s", str(error))
            own = DeviceBuffer(size)
            fill(own.address)
            return own
        memory = _reach(folder, name, size, device)
        if memory is None:
            memory = allocated(lambda: VirtualMemory(size, device))
            fill(memory.address)
            remove_ended(folder)
        try:
            _offer(memory, folder, name)
        except OSError as error:
            _log.warning("device memory is not shared with further processes: %s", str(error))
        return memory


def _reach(folder: Path, name: str, size: int, device: int) -> VirtualMemory | None:
    """Maps the memory of another process. Returns None if no process has it."""
    for path in sorted(folder.glob(f"{name}.*.socket")):
        descriptor = None
        with suppress(OSError):
            descriptor = _receive(path, name)
        if descriptor is None:
            # Its process has ended, or does not answer.
            path.unlink(missing_ok=True)
            continue
        try:
            return VirtualMemory(size, device, descriptor)
        except (DeviceError, DeviceMemoryError) as error:
            _log.warning("another process holds a copy in device memory, which cannot be mapped here: %s", str(error))
    return None


def _receive(path: Path, name: str) -> int | None:
    """Receives a descriptor of the memory `name` from the socket of its holder.

    Raises:
        OSError: there is no answer.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT)
        with _short(path) as short:
            client.connect(short)
        answer, descriptors, _, _ = socket.recv_fds(client, 256, 1)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        if answer == name.encode():
            return descriptor
        os.close(descriptor)
    return None


def _offer(memory: VirtualMemory, folder: Path, name: str) -> None:
    """Passes a descriptor of the memory to every process that asks.

    It does so as long as the memory lives.

    Raises:
        OSError: the socket cannot be made.
    """
    path = folder / f"{name}.{os.urandom(4).hex()}.socket"
    listener = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as short:
            listener.bind(short)
        listener.listen()
        # The thread owns a descriptor: the number of the memory's may be used again while the thread answers.
        owned = os.dup(memory.descriptor)
    except BaseException:
        listener.close()
        raise
    threading.Thread(target=_serve, args=(listener, owned, name), name="gear-data-device-memory", daemon=True).start()
    weakref.finalize(memory, _withdraw, listener, path, os.getpid())


def _serve(listener: socket.socket, descriptor: int, name: str) -> None:
    try:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # `_withdraw` has shut the socket down
                return
            with closing(client), suppress(OSError):
                socket.send_fds(client, [name.encode()], [descriptor])
    finally:
        os.close(descriptor)


def _withdraw(listener: socket.socket, path: Path, process: int) -> None:
    if os.getpid() == process:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Provides a path to a socket that is short enough for its address, 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
