"""`gear_data.tune`: the loader's arguments for this machine and a training step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from gear_data.common.distributed import is_distributed
from gear_data.common.environment import usable_cores
from gear_data.common.progress import progress_bar
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.kernels.cuda.nvml import driver
from gear_data.loaders.arguments.options import ExecutionOptions
from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.mixture import Mixture
from gear_data.loaders.sequence_loader import SequenceLoader
from gear_data.loaders.tuning.config_file import columns_of
from gear_data.loaders.tuning.report import TuneReport
from gear_data.loaders.tuning.search import Measurements, search
from gear_data.loaders.tuning.setting import EXECUTION_FIELDS
from gear_data.loaders.tuning.space import make_space
from gear_data.loaders.tuning.training_step import make_step
from gear_data.loaders.tuning.trial import Trials

#: Arguments that end a pass, or begin it again: a tuned loader has no end.
_OF_A_RUN = ("steps", "epochs", "passes")


def tune(
    dataset: Dataset | Mixture,
    *,
    step: Callable[[Batch], object] | None = None,
    step_ms: float = 5.0,
    step_cores: int | None = None,
    seconds: float = 60.0,
    progress: bool | None = None,
    **arguments: Any,
) -> TuneReport:
    """Measures which arguments let a loader keep up with training on this machine.

    Only arguments that leave the batches as they are, bit for bit, are tuned: the dataset's `residency` and RDMA queue
    pairs, `prefetch`, three fields of `ExecutionOptions` (`backend`, `sm_budget`, `batches_at_once`), and the number of
    a DataLoader's workers. Options that this machine does not have are left out, and the report says so.

    The measure is the time of a training step, with the time that it waits for its batch. Settings take turns. Medians
    within 2 % are tied, and the simplest of the tied settings is chosen: fewer worker processes, then fewer threads,
    then fewer queue pairs, then less memory.

    Args:
        dataset: the dataset, or a `Mixture`.
        step: step(batch) trains on a batch. It is called many times, so give it a copy of your model. None: a
            simulated step.
        step_ms: milliseconds of the simulated step; 0: none, which tunes for the most batches per second.
        step_cores: cores of the CPU that the simulated step keeps busy, as training on the CPU does; 0: it sleeps, as
            Python does while a GPU trains. None: 0 if batches go to a GPU, else 1.
        seconds: the time that tuning may take, about.
        progress: shows a progress bar; None shows one on a terminal.
        **arguments: arguments of `SequenceLoader`. Of a tuned argument that is given (also `num_workers`), only that
            value is tried; of `execution`, of each field that is not the default.

    Raises:
        InvalidArgumentError: an argument is out of its range, or ends passes.
        GearError: the loader cannot be made; see `SequenceLoader`.
    """
    began = time.monotonic()
    for name in _OF_A_RUN:
        if name in arguments:
            raise InvalidArgumentError(f"{name}= does not matter for tuning", hint=f"give {name}= to from_config")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise InvalidArgumentError(f"seconds must be a positive number, not {seconds!r}")
    if is_distributed() and arguments.get("rank") is None:
        raise InvalidArgumentError(
            "torch.distributed is initialised, and the ranks' loaders would wait for each other",
            hint="tune in one process, with rank= and world_size= for its rows; from_config needs neither",
        )
    fixed: dict[str, Any] = {name: arguments.pop(name) for name in ("prefetch", "num_workers") if name in arguments}
    # Checks the arguments, and compiles the kernels that all settings share.
    loader = SequenceLoader(dataset, **arguments, **({"prefetch": fixed["prefetch"]} if "prefetch" in fixed else {}))
    execution, default = arguments.get("execution", ExecutionOptions()), ExecutionOptions()
    for name in EXECUTION_FIELDS:
        if getattr(execution, name) != getattr(default, name):
            fixed[name] = getattr(execution, name)
    framework = loader._config.resolved_framework
    gpu = framework.device is not None and framework.device.type == "cuda"
    training = make_step(step, step_ms, step_cores, gpu=gpu)
    space = make_space(dataset, framework, fixed, simulated=training.simulated, seconds=seconds)
    trials = Trials(dataset, arguments, training)
    with progress_bar(round(seconds), "tune", "s", progress) as bar:

        def left() -> float:
            bar.update(round(time.monotonic() - began) - bar.n)
            return began + seconds - time.monotonic()

        outcome = search(space.settings, Measurements(trials.measure, trials.bare, left))
    return TuneReport(
        outcome, arguments, columns_of(dataset), space.left_out, training.text, _machine(), time.monotonic() - began
    )


def _machine() -> dict[str, Any]:
    """Returns facts about this machine, for the report."""
    found = driver()
    return {
        "cores": usable_cores(),
        "load_average": round(os.getloadavg()[0], 2),
        "gpus": [] if found is None else list(found.gpus),
    }
