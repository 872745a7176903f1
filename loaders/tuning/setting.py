"""Setting: arguments of a loader and dataset that leave batches as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gear_data.common.typed_json import resolved
from gear_data.loaders.arguments.options import ExecutionOptions

#: Fields that are fields of `ExecutionOptions`.
EXECUTION_FIELDS = ("backend", "sm_budget", "batches_at_once")
#: Batches that a DataLoader keeps ready for each worker.
_PER_WORKER = 2
#: Residency -> rank by the memory that it takes: of this machine, then also of the GPU.
_MEMORY = {"mmap": 0, "remote": 0, "host": 1, "pinned": 2, "device": 3, "tiered": 3}


@resolved
class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One choice of all tuned arguments. None: not tuned.

    Attributes:
        residency: see `gear_data.open`.
        queue_pairs: RDMA queue pairs over which one thread reads one node.
        backend, sm_budget, batches_at_once: see `ExecutionOptions`.
        num_workers: worker processes of a DataLoader.
        prefetch: see `SequenceLoader`.
    """

    residency: str | None = None
    queue_pairs: Annotated[int, Meta(ge=1, le=64)] | None = None
    backend: str | None = None
    sm_budget: float | None = None
    num_workers: Annotated[int, Meta(ge=0)] | None = None
    prefetch: Annotated[int, Meta(ge=0)] | None = None
    batches_at_once: Annotated[int, Meta(ge=1)] | None = None

    def applied_to(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns arguments of `SequenceLoader` with the tuned ones in their place."""
        tuned = {name: value for name in EXECUTION_FIELDS if (value := getattr(self, name)) is not None}
        given = arguments.get("execution", ExecutionOptions())
        ahead = {} if self.prefetch is None else {"prefetch": self.prefetch}
        return {**arguments, **ahead, "execution": dataclasses.replace(given, **tuned)}

    @property
    def source(self) -> tuple[Any, ...]:
        """The fields that decide the cost of a batch, and not when it is built."""
        return (self.residency, self.queue_pairs, self.backend, self.sm_budget)

    @property
    def batches_ahead(self) -> int:
        """The most batches in memory that the consumer has not taken."""
        ahead = (self.prefetch or 0) + (self.batches_at_once or 1) if self.prefetch else 0
        workers = self.num_workers or 0
        return ahead if not workers else workers * (_PER_WORKER + ahead)

    @property
    def simplicity(self) -> tuple[float, ...]:
        """Sorts settings, the simplest first.

        Fewer processes count first, then threads, connections, memory, and multiprocessors.
        """
        return (
            self.num_workers or 0,
            min(self.prefetch or 0, 1),
            self.queue_pairs or 1,
            _MEMORY.get(self.residency or "mmap", 0),
            self.backend == "cuda",
            self.batches_ahead,
            self.sm_budget or 1.0,
        )

    def __str__(self) -> str:
        fields = msgspec.to_builtins(self)
        return ", ".join(f"{name}={value}" for name, value in fields.items()) or "as given"
