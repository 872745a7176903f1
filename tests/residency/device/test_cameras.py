"""Cameras with device="cuda", on a stand-in for a GPU.

The CPU decodes them into pinned memory, as YUV where it can, and a kernel makes the arrays of the batch.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import Mixture, RandomCrop, SequenceLoader
from gear_data.collection.buffers import plain_memory
from gear_data.loaders.frameworks import pinned_batches
from gear_data.video.decoding.decoder import NoPlanesError
from gear_data.video.decoding.pyav import PyavDecoder
from tests.support.cameras.filmed import FRONT, WRIST, film
from tests.support.cuda.gpu_stand_in import StandInGpu
from tests.support.cuda.loader_checks import copies, from_device, same
from tests.support.feed.arguments import grouped

pytestmark = pytest.mark.processes

OPTIONS: dict[str, Any] = {"batch_size": 6, "context": 4, "seed": 3}
LEROBOT: dict[str, Any] = {"preset": "lerobot", "offsets": {FRONT: [-2, 0], "actions": [0, 3]}, "prefetch": 3}
STEPS = 5


@pytest.fixture(scope="module")
def path(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset")
    film(folder / "dataset", [len(rollout) for rollout in rollouts])
    return folder / "dataset"


@pytest.fixture
def uploads(gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The copies to the device."""
    found: list[torch.Tensor] = []

    def to_device(tensor: torch.Tensor, *, device: torch.device, non_blocking: bool) -> torch.Tensor:
        # The copy runs later. It does not hold its source, which the loader must not use again until then.
        found.append(torch.empty_like(tensor))
        target, source, size = found[-1].data_ptr(), tensor.data_ptr(), tensor.nbytes
        gpu.cupy.streams.add(gpu.torch.current, lambda: ctypes.memmove(target, source, size))
        return found[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.Tensor, "to", to_device)
    monkeypatch.setattr(pinned_batches, "pinned_memory", plain_memory)
    return found


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        (LEROBOT, {"gear_frames_4"}),
        ({"preset": "lerobot", "dtype": "bfloat16"}, {"gear_frames_2"}),
        # The frames of steps around an episode are repeated, and those after its end are padding.
        ({"preset": "transitions", "context": None, "window_ids": True, "rank": 1, "world_size": 2}, {"gear_frames"}),
        ({"preset_options": {"side": "left"}, "columns": [FRONT, WRIST, "actions"]}, {"gear_frames"}),
        # Frames that are resized come as RGB.
        ({"preset": "lerobot", "dtype": "float64", "resize": {FRONT: (20, 30)}}, {"gear_frames_8"}),
        ({"resize": (20, 30)}, set()),
        ({"columns": [FRONT, "rewards", "length", "facts.terminated"]}, {"gear_frames"}),
    ],
    ids=["floats", "half precision", "transitions", "padding left", "one camera resized", "all resized", "facts"],
)  # fmt: skip
def test_batches_with_cameras(
    gpu: StandInGpu, path: Path, uploads: list[torch.Tensor], options: dict[str, Any], kernels: set[str]
) -> None:
    arguments = {**OPTIONS, **options}
    on_cpu = SequenceLoader(gear_data.open(path), **grouped(**arguments))
    expected = copies(on_cpu, STEPS)
    loader = SequenceLoader(
        gear_data.open(path, residency="device"), **grouped(**arguments, device="cuda", backend="cuda")
    )
    got = from_device(gpu, loader, STEPS)
    assert set(gpu.cupy.launched) == {"gear_collect", *kernels}  # the CPU draws the windows, because it decodes
    same(got, expected)
    assert loader.metrics()["pad_fraction"] == pytest.approx(on_cpu.metrics()["pad_fraction"])


def test_the_cpu_may_collect_the_other_columns(gpu: StandInGpu, path: Path, uploads: list[torch.Tensor]) -> None:
    loader = SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, **LEROBOT, device="cuda", backend="cpu"))
    same(
        from_device(gpu, loader, STEPS),
        copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, **LEROBOT)), STEPS),
    )
    assert set(gpu.cupy.launched) == {"gear_frames_4"}


@pytest.mark.parametrize("gpu", ["consumer first", "device first"], indirect=True)
def test_memory_is_not_used_again_too_early(gpu: StandInGpu, path: Path, uploads: list[torch.Tensor]) -> None:
    loader = SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, **LEROBOT, device="cuda"))
    got = from_device(gpu, loader, 12)
    same(got, copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, **LEROBOT)), 12))


@pytest.mark.parametrize("join", [False, True])
def test_mixtures(gpu: StandInGpu, path: Path, uploads: list[torch.Tensor], join: bool) -> None:
    def mixed() -> Mixture:
        ds = gear_data.open(path)
        return Mixture([(ds, 1), (ds.filter("length > 3"), 2)], join=join)

    expected = copies(SequenceLoader(mixed(), **grouped(**OPTIONS)), STEPS)
    same(from_device(gpu, SequenceLoader(mixed(), **grouped(**OPTIONS, device="cuda")), STEPS), expected)
    assert set(gpu.cupy.launched) == {"gear_frames"}


@pytest.mark.parametrize("join", [False, True])
def test_absent_cameras(gpu: StandInGpu, path: Path, uploads: list[torch.Tensor], join: bool) -> None:
    def mixed() -> Mixture:
        bare = {"columns": ["actions"]}
        return Mixture([(gear_data.open(path), 1, bare), (gear_data.open(path), 2)], join=join, pad_to="largest")

    expected = copies(SequenceLoader(mixed(), **grouped(**OPTIONS)), STEPS)
    same(from_device(gpu, SequenceLoader(mixed(), **grouped(**OPTIONS, device="cuda")), STEPS), expected)
    assert set(gpu.cupy.launched) == {"gear_frames"}
    batch = expected[0] if join else next(each for each in expected if each["source"][0] == 0)
    assert not batch[f"{FRONT}_present"].all() and not batch[FRONT][batch["source"] == 0].any()


def test_each_distinct_frame_is_copied_once_as_yuv(gpu: StandInGpu, path: Path, uploads: list[torch.Tensor]) -> None:
    options = {**OPTIONS, "columns": [FRONT], "offsets": {FRONT: [0, 0, -1, -100]}, "preset": "lerobot"}
    loader = SequenceLoader(gear_data.open(path), **grouped(**options, device="cuda"))
    windows = loader.windows(0)
    batch = gpu.read(loader.batch(0))
    steps = windows["start"][:, None] + np.array([0, 0, -1, -100])
    distinct = {(e, max(0, s)) for e, row in zip(windows["episode_id"], steps, strict=True) for s in row}
    # The table of values, and 32 bytes for each frame of the batch.
    head = 256 * 4 + 6 * 4 * 32
    sizes = [upload.nbytes for upload in uploads]
    assert sum(size > head for size in sizes) == 1
    assert max(sizes) == head + len(distinct) * 48 * 64 * 3 // 2
    gpu.finish()
    assert torch.equal(batch[FRONT], SequenceLoader(gear_data.open(path), **grouped(**options)).batch(0)[FRONT])


def test_frames_that_differ_from_the_index_come_as_rgb(
    gpu: StandInGpu, path: Path, uploads: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS)), STEPS)
    write, written = PyavDecoder.write_planes, [0]

    def change(self: PyavDecoder, picture: Any, out: Any) -> Any:
        # As if the stream changed to other colours.
        written[0] += 1
        if written[0] > 30 and picture.height == 48:
            raise NoPlanesError("other colours")
        return write(self, picture, out)

    monkeypatch.setattr(PyavDecoder, "write_planes", change)
    loader = SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, device="cuda"))
    same(from_device(gpu, loader, STEPS), expected)
    # Both cameras at first, and then one.
    assert STEPS < gpu.cupy.launched.count("gear_frames") < 2 * STEPS


@pytest.mark.parametrize("why", ["no CuPy", "transform", "augment", "pageable"])
def test_what_needs_rgb_gets_rgb(
    gpu: StandInGpu, path: Path, uploads: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    options: dict[str, Any] = dict(OPTIONS)
    if why == "transform":
        options["transform"] = lambda batch, rng: {**batch, "dark": batch[FRONT] // 2}
    elif why == "augment":
        options["augment"] = {FRONT: RandomCrop((40, 60))}
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**options)), 2)
    if why == "no CuPy":
        monkeypatch.setitem(sys.modules, "cupy", None)
    elif why == "pageable":
        options["pin_memory"] = False
        # CUDA reads memory that is not pinned before the call returns.
        monkeypatch.setattr(torch.Tensor, "to", lambda tensor, **where: uploads.append(tensor.clone()) or uploads[-1])
    loader = SequenceLoader(gear_data.open(path), **grouped(**options, device="cuda", backend="cpu"))
    same(from_device(gpu, loader, 2), expected)
    assert gpu.cupy.launched == []
