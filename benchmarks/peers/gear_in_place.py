"""Contender of benchmarks/in_place.py: batches of a LeRobot dataset on a hub, by `gear_data.open`.

The process prints a line when its imports are done. For each of three lines on standard input it prints one: it opens
the dataset, draws the first batch, and draws the other batches, with a sleep before each.
"""

from __future__ import annotations

from typing import Any

from hub_harness import Batches, run


def batches(args: Any) -> Batches:
    import gear_data
    from gear_data.video.decoding import frame_reader

    groups: dict[tuple[int, int], int] = {}
    ranges = frame_reader.packet_ranges

    def counted(index: Any, job: Any) -> Any:
        """Counts the bytes of the groups of pictures that are decoded."""
        starts, sizes = index.groups(job.file).starts, index.file(job.file).packets.size
        for group in range(len(starts) - 1):
            if starts[group] < job.last and job.first < starts[group + 1]:
                groups[job.file, group] = int(sizes[starts[group] : starts[group + 1]].sum())
        return ranges(index, job)

    def drawn() -> Any:
        frame_reader.packet_ranges = counted
        dataset = gear_data.open(args.repository)
        yield None
        cameras = [camera.name for camera in dataset.schema.videos]
        loader = gear_data.SequenceLoader(
            dataset, batch_size=args.batch_size, context=1, preset="raw", framework="numpy",
            columns=["observations", "actions", *cameras], sampler="uniform", seed=args.seed, steps=args.steps,
        )  # fmt: skip
        for batch in loader:
            facts["group_bytes"] = sum(groups.values())
            yield batch

    facts: dict[str, Any] = {}
    return Batches(drawn(), facts, ("gear-data", "numpy", "av"))


if __name__ == "__main__":
    run(batches, __doc__ or "")
