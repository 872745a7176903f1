"""DemoReport: the results of the demo, for scripts and for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DemoReport:
    """Results of the demo.

    Attributes:
        folder: folder of all files.
        episodes, steps: size of the dataset.
        return_min, return_mean, return_max: returns of its episodes.
        convert_bytes_per_s: bytes of the dataset, divided by the seconds of its conversion.
        feed_bytes_per_s: padded bytes per second of batches of 256 windows of 20 steps.
        feed_windows_per_s: windows per second of the same batches.
        train_device: device of the training.
        train_steps, train_seconds: length of the training.
        loss_start, loss_end: mean action loss of the first and of the last steps.
        files: all files written, relative to the folder.
        seconds: stage -> wall time; `total` is the time of all stages.
    """

    folder: str
    episodes: int
    steps: int
    return_min: float
    return_mean: float
    return_max: float
    convert_bytes_per_s: float
    feed_bytes_per_s: float
    feed_windows_per_s: float
    train_device: str
    train_steps: int
    train_seconds: float
    loss_start: float
    loss_end: float
    files: tuple[str, ...]
    seconds: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": list(self.files)}

    def summary(self) -> str:
        """Returns a few lines of text for a terminal."""
        folders = {name.split("/")[0] for name in self.files if "/" in name}
        return "\n".join(
            (
                f"rollouts   {self.episodes:,} episodes, {self.steps:,} steps of Pendulum-v1; "
                f"returns {round(self.return_min):,} to {round(self.return_max):,}, mean {round(self.return_mean):,}",
                f"conversion {self.convert_bytes_per_s / 1e6:,.0f} MB/s",
                f"feed       {self.feed_bytes_per_s / 1e9:.2f} GB/s, {self.feed_windows_per_s:,.0f} windows/s",
                f"training   {self.train_steps:,} steps in {self.train_seconds:.0f} s on {self.train_device}: "
                f"loss {self.loss_start:.4f} -> {self.loss_end:.4f}",
                f"written    {len(self.files)} files in {self.folder}/: {', '.join(sorted(folders))}",
                f"total      {self.seconds['total']:.0f} s; {self.folder}/training/loss.png shows the loss",
            )
        )
