"""What holds for the conditional puts of every kind of store, on every server."""

from __future__ import annotations

import threading

from gear_data.storage.remote.conditional.store import ConditionalStore


def check_conditions(store: ConditionalStore, no_version: str) -> None:
    """Checks which puts succeed.

    Args:
        store: an empty folder.
        no_version: the version of no object.
    """
    assert store.read("a/b") is None
    assert not store.put("a/b", b"zero", no_version)  # there is no such file
    assert store.put("a/b", b"one", None)
    first = store.read("a/b")
    assert first is not None
    assert first.data == b"one"
    assert not store.put("a/b", b"two", None)
    assert not store.put("a/b", b"two", no_version)
    assert store.put("a/b", b"two", first.version)
    assert not store.put("a/b", b"three", first.version)
    assert store.put("a/b", b"two", first.version)  # as after a put whose answer was lost
    found = store.read("a/b")
    assert found is not None
    assert found.data == b"two"
    assert found.version != first.version
    for number, data in enumerate([b"", b"\r\n--x--\r\n\r\n", bytes(range(256))]):
        assert store.put(f"bytes {number}+%41?#", data, None)
        found = store.read(f"bytes {number}+%41?#")
        assert found is not None
        assert found.data == data


def check_count(store: ConditionalStore) -> None:
    """Checks that threads count in one file, and no count is lost."""
    store.put("count", b"0", None)

    def count() -> None:
        for _ in range(5):
            while True:
                found = store.read("count")
                assert found is not None
                # A name of the thread: texts of two threads never agree.
                number = int(found.data.split()[0]) + 1
                if store.put("count", f"{number} {threading.get_ident()}".encode(), found.version):
                    break

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.read("count")
    assert found is not None
    assert int(found.data.split()[0]) == 20
