"""Every benchmark runs, with all its options, at its smallest size. Runs that take long are nightly.

The commands are in `tests/support/benchmarks/commands.py`. Their processes start quickly, because they are forks of one
server that has imported torch. The tests check that a benchmark prints and records all that it promises, never how
fast something is. The folder `gpu` has benchmarks/gpu.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import augment
import cluster
import common
import convert_jobs
import convert_layouts
import first_batch
import numpy as np
import pytest
import rdma
import scale
import selection
import tune
from feeding.chart import THEMES
from feeding.contenders import CONTENDERS, INLINE, THREADS
from feeding.scenarios import SCENARIOS
from mixing import joined

from gear_data.demo.rollouts import write_rollouts
from tests.support.benchmarks.commands import BENCHMARKS
from tests.support.benchmarks.results import Result, rows_of
from tests.support.running.warm_python import INTERPRETER

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet of Hopper's shape."""
    path = tmp_path_factory.mktemp("source") / "hopper.parquet"
    common.write_parquet(common.synthetic_episodes(5000, seed=3), path)
    return path


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollouts") / "pendulum" / "train.parquet"
    write_rollouts(path, 12, 0, False)
    return path


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's code, and of the compiled kernels beside it."""
    folder = tmp_path_factory.mktemp("checkouts") / "older"
    folder.mkdir()
    for name in ("gear_data", "kernels", "loaders", "benchmarks"):
        shutil.copytree(BENCHMARKS.parent / name, folder / name, symlinks=True)
    return folder


# selection.py

COST = {field.name for field in dataclasses.fields(selection.Cost)}


def check_costs(result: Result, wanted: list[tuple[str, int]]) -> None:
    assert result.status == 0, result.errors
    costs: list[dict[str, Any]] = result.record["costs"]
    assert [(cost["kind"], cost["episodes"]) for cost in costs] == wanted
    for cost in costs:
        assert cost.keys() == COST
        absent = {name for name, value in cost.items() if value is None}
        assert ("update_ms" in absent) == (cost["kind"] != "weighted, updated")
        assert ("chi_square" in absent) == (cost["kind"] not in ("weighted by episode", "weighted by step"))
        assert absent <= {"update_ms", "chi_square"}
    rows = rows_of(result.printed, "ms per 4,096 draws")
    assert [(row[0], int(row[1].replace(",", ""))) for row in rows] == wanted


@pytest.mark.nightly
def test_every_kind_is_measured(run: Run) -> None:
    check_costs(run("selection"), [(kind, 1000) for kind in selection.KINDS])


def test_kinds_and_sizes_can_be_chosen(run: Run) -> None:
    wanted = [(kind, episodes) for kind in ("fifo", "topk") for episodes in (200, 400)]
    check_costs(run("selection of some kinds"), wanted)


def test_refreshes_are_measured(run: Run) -> None:
    result = run("refresh costs")
    assert result.status == 0, result.errors
    found = result.record["refresh"]
    assert [(each["episodes"], each["updated"], each["evicted"]) for each in found] == [
        (300, False, 0), (300, True, 0), (300, True, 100)
    ]  # fmt: skip
    assert all(each["refresh_ms"] > 0 and each["first_update_ms"] > 0 for each in found)


def test_loaders_are_measured_beside_the_uniform_one(run: Run) -> None:
    result = run("loaders by sampler")
    assert result.status == 0, result.errors
    (found,) = result.record["loaders"]
    assert found["samplers"][0]["ratio"] == 1
    assert all(each["us"] > 0 and each["ratio"] > 0 for each in found["samplers"])
    assert [each["changes"] for each in found["updates"]] == [1, 256]
    assert [row[0] for row in rows_of(result.printed, "ratio to uniform")] == [
        each["sampler"] for each in found["samplers"]
    ]


def test_a_sparse_dataset_is_opened_and_drawn_from(run: Run) -> None:
    result = run("sparse dataset")
    assert result.status == 0, result.errors
    assert [found["episodes"] for found in result.record["sparse"]] == [200, 1000]
    timed = ("open", "split", "episodes", "uniform", "uniform_first", "weighted", "weighted_first")
    names = {"episodes", "imports_bytes", *(f"{mark}_seconds" for mark in timed)}
    for found in result.record["sparse"]:
        assert found.keys() == names | {f"{mark}_bytes" for mark in ("episodes", "uniform", "weighted")}
    assert "1,000,000 steps in 1,000 episodes: opened in " in result.printed
    assert result.printed.count("peak memory (MiB): ") == 2


# convert.py


def check_sizes(result: Result, copies: list[int], sizes: list[int]) -> None:
    assert result.status == 0, result.errors
    record = result.record
    assert [scale["copies"] for scale in record["scales"]] == [0, *copies]
    assert [(one["copies"], one["shard_bytes"]) for one in record["timings"]] == [
        (count, size) for count in copies for size in sizes
    ]
    for one in record["timings"]:
        assert one["floor_seconds"].keys() == one["gear_seconds"].keys() == {"median", "min", "max"}
        assert one["gear_to_floor"] > 0
    ways = [("floor", None), *(("gear", size) for size in sizes)]
    assert [(one["copies"], one["way"], one["shard_bytes"]) for one in record["memory"]] == [
        (count, *way) for count in (0, *copies) for way in ways
    ]
    assert len(rows_of(result.printed, "gear / floor, GB/s")) == len(copies) * len(sizes)
    assert len(rows_of(result.printed, "peak above imports MiB")) == (len(copies) + 1) * 3


def test_random_data_are_measured(run: Run) -> None:
    result = run("conversion")
    check_sizes(result, [1, 8], [512 << 20, 16 << 20])
    assert "synthetic: 1 Parquet files" in result.printed


def test_a_source_is_measured(run: Run, source: Path) -> None:
    result = run("conversion of a source", source=source)
    check_sizes(result, [1, 2, 8], [4_000_000, 1_000_000])
    assert result.record["settings"]["repetitions"] == 2
    assert "given source: 1 Parquet files" in result.printed


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        pytest.param("layouts", [*convert_layouts.LAYOUTS], marks=pytest.mark.nightly),
        ("two layouts", ["minari", "lerobot"]),
    ],
)
def test_layouts_are_measured(name: str, layouts: list[str], run: Run) -> None:
    result = run(name)
    assert result.status == 0, result.errors
    records = result.record["layouts"]
    assert [record["layout"] for record in records] == layouts
    assert [row[0] for row in rows_of(result.printed, "reading / floor")] == layouts
    expected = {"layout", "bytes", *(f"{way}_{part}" for way in ("floor", "gear") for part in ("seconds", "to_floor"))}
    two_cores = {"one_core_seconds", "two_cores_seconds", "two_cores"} if len(os.sched_getaffinity(0)) > 1 else set()
    for number, record in enumerate(records):
        parquet = convert_layouts.LAYOUTS[record["layout"]].floor is convert_layouts.floor_parquet
        reading = set() if parquet else {"read_seconds", "read_to_floor"}
        assert record.keys() == expected | reading | (two_cores if number == 0 else set())


def test_small_things_are_measured(run: Run) -> None:
    result = run("small things")
    assert result.status == 0, result.errors
    cases = result.record["cases"]
    assert [row[0] for row in rows_of(result.printed, "floor MB/s")] == [case["case"] for case in cases]
    assert [case["target"] for case in cases] == [1.3, 1.3, 1.5, *[None] * 5]
    assert all((case["bytes"] is None) == (case["target"] is not None) for case in cases)
    assert all(case["times_the_floor"] > 0 for case in cases)


@pytest.mark.nightly
def test_numbers_of_jobs_are_measured(run: Run) -> None:
    result = run("numbers of jobs")
    assert result.status == 0, result.errors
    cases = result.record["cases"]
    assert [case["case"] for case in cases] == [case.name for case in convert_jobs.CASES]
    ways = [(case.name, way) for case in convert_jobs.CASES for way in case.ways]
    assert [(row[0], row[2].removeprefix("jobs: ")) for row in rows_of(result.printed, "own busy s")] == ways
    for case in cases:
        for one in case["rounds"]:
            assert all(found["seconds"] > 0 and found["own_busy"] > 0 for found in one.values())
        assert all(ratio["seconds"] > 0 for ratio in case["ratios"].values())
    assert len(rows_of(result.printed, "seconds of")) == sum(len(case.targets) for case in convert_jobs.CASES)


# cluster.py


@pytest.fixture(scope="module")
def cluster_result(run: Run) -> Result:
    found = run("cluster")
    assert found.status == 0, found.errors
    return found


def test_every_measurement_is_recorded(cluster_result: Result) -> None:
    record = cluster_result.record
    assert record["bulk"].keys() == {str(size) for size in cluster.BULK_MESSAGES}
    shapes = {"256x100", "256x20"}
    assert record["shapes"].keys() == record["overhead"].keys() == shapes
    times = {"seconds", "pipelined_seconds", "raw_seconds", "raw_pipelined_seconds"}
    assert all(shape.keys() == {"bytes", *times} for shape in record["shapes"].values())
    assert all(each.keys() == {"local", "as a node"} for each in record["overhead"].values())
    assert record["channels"].keys() == {f"{size}/{n}" for size in cluster.MESSAGES for n in cluster.IN_FLIGHT}
    assert len(record["size_classes"]) == 2
    assert len(record["targets"]) == 4


def test_every_table_is_printed(cluster_result: Result) -> None:
    printed = cluster_result.printed
    assert len(rows_of(printed, "GB/s")) == len(cluster.BULK_MESSAGES)
    assert [row[0] for row in rows_of(printed, "pipelined, us")] == ["256x100", "256x20"]
    assert len(rows_of(printed, "1 in flight")) == len(cluster.MESSAGES)
    assert len(rows_of(printed, "256x16 with images")) == 2
    assert len(rows_of(printed, "target")) == 4


def test_scale_prints_its_tables(run: Run, cluster_result: Result, tmp_path: Path) -> None:
    built_in = run("scale")
    written = tmp_path / "cluster.json"
    written.write_text(json.dumps(cluster_result.record))
    other = run("scale by another run", cluster=written)
    for found, ranks in ((built_in, 8), (other, 2)):
        assert found.status == 0, found.errors
        for family in scale.FAMILIES:
            assert f"{family.name}: a batch of " in found.printed
        assert f"{ranks} ranks a node" in found.printed
        assert len(rows_of(found.printed, "queue pairs of a node")) == len(scale.NODES)
        assert len(rows_of(found.printed, "million episodes")) == len(scale.FAMILIES) * len(scale.DATASETS)
        assert len(rows_of(found.printed, "model")) == 6
    request, byte = scale.fit_flight(cluster_result.record)
    assert other.printed.startswith(f"Flight: {request * 1e6:.0f} us per request, {byte * 1e9:.2f} ns per byte; ")


# rdma.py


def test_batches_of_reads_are_measured(run: Run) -> None:
    result = run("rdma")
    assert result.status == 0, result.errors
    assert result.record["seconds_a_read"].keys() == {str(count) for count in rdma.READS}
    assert all(seconds > 0 for seconds in result.record["seconds_a_read"].values())
    assert [row[0] for row in rows_of(result.printed, "ns per READ")] == [f"{count:,}" for count in rdma.READS]


# first_batch.py


def test_first_batches_are_measured(run: Run) -> None:
    result = run("first batches")
    assert result.status == 0, result.errors
    assert result.record["results"].keys() == first_batch.PROGRAMS.keys()
    for spans in result.record["results"].values():
        assert all(spans[kind]["median"] > 0 for kind in ("processor", "clock"))
    assert [row[0] for row in rows_of(result.printed, "processor s")] == list(first_batch.PROGRAMS)


# mixture.py


def test_packed_rows_are_measured(run: Run) -> None:
    result = run("packed rows")
    assert result.status == 0, result.errors
    assert [(each["case"], each["rows"]) for each in result.record["results"]["packed"]] == [
        (case, rows) for rows in (2, 3) for case in ("episodes, uniform", "episodes, shuffle", "20 steps, uniform")
    ]
    for each in result.record["results"]["packed"]:
        assert each["padded_ns"] > 0 and each["packed_ns"] > 0
        assert each["packed_real"] > 0.95, each
    assert len(rows_of(result.printed, "packed ns a step")) == 6


def test_datasets_of_mixtures_are_made_once(tmp_path: Path) -> None:
    made = joined.make_datasets(tmp_path, 2, 100)
    assert [each.num_steps for each in made] == [50, 50]
    prints, before = [each.fingerprint for each in made], [each.path.stat().st_ino for each in made]
    # A run that was stopped leaves a part of a dataset.
    made[1].path.rename(made[1].path.with_name(f"{made[1].path.name}.part"))
    again = joined.make_datasets(tmp_path, 2, 100)
    assert [each.path.stat().st_ino == inode for each, inode in zip(again, before, strict=True)] == [True, False]
    assert [each.fingerprint for each in again] == prints


def test_a_mixture_resumes_from_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As LeRobot does, whose time to open its datasets counts."""
    made, plain = joined.make_datasets(tmp_path, 2, 4000), joined.gear_data.open
    opened: list[Any] = []
    monkeypatch.setattr(joined.gear_data, "open", lambda path: (opened.append(path), plain(path))[1])
    assert joined.resume_seconds(made, cameras=False) > 0
    assert opened == [each.path for each in made]


def test_joined_batches_are_measured(run: Run) -> None:
    result = run("joined batches")
    assert result.status == 0, result.errors
    assert [(each["datasets"], each["cameras"]) for each in result.record["results"]["joined"]] == [
        (count, cameras) for cameras in (0, 2) for count in (1, 2)
    ]
    for each in result.record["results"]["joined"]:
        assert each["us"] > 0 and each["processor_us"] > 0 and each["ratio"] > 0 and each["resume_seconds"] > 0
    # Two datasets have as many steps as the one beside them.
    assert [row[:3] for row in rows_of(result.printed, "processor us a batch")] == [
        ["1", "4,000", "0"],
        ["2", "4,000", "0"],
        ["1", "8", "2"],
        ["2", "8", "2"],
    ]
    assert "LeRobot, ConcatDataset: not measured: not installable" in result.printed
    assert "tf.data, as Octo uses it: not measured: not installable" in result.printed


def test_peers_of_joined_batches(run: Run) -> None:
    """The tests' own environment has TensorFlow, and no LeRobot: a peer that ends is reported."""
    result = run("joined batches beside peers")
    assert result.status == 0, result.errors
    results = result.record["results"]
    assert "ended with status" in results["lerobot"]["failure"]
    (found,) = results["tensorflow"]["mixtures"]
    assert found["datasets"] == 1 and found["cameras"] == 0 and found["batches"] > 0


# lerobot_train.py


def test_training_by_lerobot_needs_its_environment(run: Run) -> None:
    result = run("training by LeRobot")
    assert result.status == 0, result.errors
    (table,) = result.record["tables"]
    assert [(each["dataset"], each["workers"]) for each in table["rows"]] == [("gear", 0), ("lerobot", 0), ("plain", 0)]
    assert all(each["failure"] == "not installed (run with --install)" for each in table["rows"])
    assert "0 workers, gear-data to LeRobot: not measured" in result.printed


def test_training_by_lerobot_that_ends_is_reported(run: Run) -> None:
    """The tests' own environment has no LeRobot. It can decode."""
    result = run("training by LeRobot, elsewhere")
    assert result.status == 0, result.errors
    *datasets, plain = result.record["tables"][0]["rows"]
    assert all("ended with status" in each["failure"] for each in datasets)
    assert plain["rounds"][0]["free"]["frames"] > 0 and plain["rounds"][0]["training"]["waited"] > 0


# in_place.py: huggingface_hub reads the URL of the hub when it is imported, which the fork server has done.


def test_datasets_on_a_hub_are_read_in_place(run: Run) -> None:
    result = run("in place", interpreter=INTERPRETER)
    assert result.status == 0, result.errors
    assert [each["layout"] for each in result.record["tables"]] == ["v3.0", "v2.1"]
    for each in result.record["tables"]:
        gear, *others = each["rows"]
        assert "failure" not in gear, gear
        (measured,) = gear["rounds"]
        sent = {part: measured[part]["sent"] for part in ("open", "first", "steps")}
        # meta/ and data/, and the indexes of two cameras.
        assert sent["open"]["requests"] > 5 and sent["open"]["bytes"] > sent["open"]["video_bytes"] > 0
        assert sent["first"]["bytes"] == sent["first"]["video_bytes"] > 0
        assert measured["steps"]["steps"] == 3 and measured["steps"]["group_bytes"] > 0
        assert all(row["failure"] == "not installed (run with --install)" for row in others)
        assert [row["name"] for row in others] == (["download", "streaming"] if each["layout"] == "v3.0" else [])
    assert len(rows_of(result.printed, "first batch s")) == 3
    assert result.printed.count("(target 1.3: ") == 2


def test_lerobot_that_ends_is_reported_beside_a_dataset_in_place(run: Run) -> None:
    """The tests' own environment has no LeRobot."""
    result = run("in place, elsewhere", interpreter=INTERPRETER)
    assert result.status == 0, result.errors
    (table,) = result.record["tables"]
    assert ["failure" in row for row in table["rows"]] == [False, True, True]
    assert all("ended with status" in row["failure"] for row in table["rows"][1:])


# augment.py


def test_augmentations_are_measured(run: Run) -> None:
    result = run("augmentations")
    assert result.status == 0, result.errors
    names = [name for _ in augment.SIZES for name in augment.AUGMENTATIONS for _ in range(2)]
    assert [each["augment"] for each in result.record["results"]] == names
    assert all(time["median"] > 0 for each in result.record["results"] for time in each["ms"].values())
    assert [row[1] for row in rows_of(result.printed, "torchvision ms")] == names


# feed.py

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
STAGES = {"selection", "buffers", "kernel", "tensors", "rest"}


WITH_PEERS = {
    "feed": ["hopper-256x20", "g1-26+26", "transitions-256", "goals-256"],
    "options of loaders": ["shifts-256", "stacks-256x20", "priorities-256"],
}


def check_race(result: Result, names: list[str], peers: set[str], missing: dict[str, str]) -> None:
    """Checks the tables of contenders. missing: contender -> its failure."""
    assert result.status == 0, result.errors
    scenarios: list[dict[str, Any]] = result.record["scenarios"]
    assert [each["scenario"] for each in scenarios] == names
    for each in scenarios:
        wanted = BY_NAME[each["scenario"]]
        assert each["batch"] == [wanted.batch_size, wanted.context]
        rows = {row["name"]: row for row in each["contenders"]}
        assert rows.keys() == {INLINE, THREADS, *peers} & {INLINE, THREADS, *wanted.peers}
        for name, row in rows.items():
            if name in missing:
                assert row["failure"].startswith(missing[name])
                continue
            assert "failure" not in row, row
            assert row["padded_gb_per_s"].keys() == {"median", "min", "max"}
            assert row["inline_ratio"] > 0 and row["threads_ratio"] > 0
            assert (row["windows_per_s"] is None) == name.startswith("memcpy")
            assert row["padded_bytes_per_batch"] > 0 and row["delivers"] and row["notes"]
        assert f": {each['scenario']}\n" in result.printed
        assert each["data"] in result.printed


@pytest.mark.nightly
def test_all_parts_and_contenders_are_measured(run: Run) -> None:
    result, shapes = run("feed"), WITH_PEERS["feed"]
    check_race(result, shapes, {each.name for each in CONTENDERS}, {"reverb": "not installed (run with --install)"})
    printed = result.printed
    assert "Reverb TrajectoryDataset, same process: not measured: not installed (run with --install)" in printed
    wanted = {INLINE, THREADS}.union(*(BY_NAME[shape].peers for shape in shapes))
    assert [each.title for each in CONTENDERS if each.name in wanted and f"\n| {each.title} " not in printed] == []
    check_wait(result, shapes)
    check_memory(result, ["1000"])
    check_profile(result, shapes)


def test_options_of_loaders_are_measured(run: Run, tmp_path: Path) -> None:
    """TorchRL's sum tree is compiled code, which not all of its wheels have."""
    result = run("options of loaders", charts=tmp_path / "charts")
    rows = {row["name"]: row for each in result.record["scenarios"] for row in each["contenders"]}
    failure = rows["torchrl-priorities"].get("failure")
    missing = {} if failure is None else {"torchrl-priorities": "ended with status 1: RuntimeError: SumSegmentTree"}
    check_race(result, WITH_PEERS["options of loaders"], {each.name for each in CONTENDERS}, missing)
    stacks = result.record["scenarios"][1]["contenders"]
    sizes = {row["padded_bytes_per_batch"] for row in stacks if row["name"] in (INLINE, THREADS, "gear-converted")}
    assert len(sizes) == 1
    counted = [row for row in result.record["scenarios"][0]["contenders"] if row.get("windows_per_s")]
    fastest_first = sorted(counted, key=lambda row: -row["windows_per_s"]["median"])
    for theme in THEMES:
        svg = ElementTree.parse(tmp_path / "charts" / f"feed-{theme}.svg")
        texts = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
        rates = [common.figure(row["windows_per_s"]["median"] / 1e6, 2) for row in fastest_first]
        titles = [row["title"] for row in fastest_first]
        assert texts == [*titles, *rates, "Million windows a second, batches of 256 x 1"]


def check_wait(result: Result, shapes: list[str]) -> None:
    kinds = [(shape, kind) for shape in shapes for kind in ("sleep", "matmul", "python")]
    assert [(row["scenario"], row["consumer"]) for row in result.record["wait"]] == kinds
    for row in result.record["wait"]:
        for quantity in ("wait_fraction", "wait_us_median", "wait_us_p99"):
            assert row[quantity].keys() == {"median", "min", "max"}
    assert [tuple(row[:2]) for row in rows_of(result.printed, "step of 5 ms")] == kinds


def check_memory(result: Result, marks: list[str]) -> None:
    assert [row["prefetch"] for row in result.record["memory"]] == [0, 2]
    assert all([*row["resident_bytes"]] == [*row["anonymous_bytes"]] == marks for row in result.record["memory"])
    assert [row[0] for row in rows_of(result.printed, "growth KiB")] == ["prefetch=0", "prefetch=2"]


def check_profile(result: Result, names: list[str]) -> None:
    assert [row["scenario"] for row in result.record["profile"]] == names
    for row in result.record["profile"]:
        assert row["stages_us"].keys() == STAGES
        assert {"batch_us", "threads_us", "batch_bytes", "hot_copy_us", "cold_copy_us"} <= row.keys()
        floors = {"floor_us", "kept_floor_us", "times_the_floor", "times_the_kept_floor"} & row.keys()
        # Another checkout, in the name after the comma, is not asked for its floor.
        shape, _, checkout = row["scenario"].partition(", ")
        assert len(floors) == (4 if "floor" in BY_NAME[shape].peers and not checkout else 0)
    assert [row[0] for row in rows_of(result.printed, "batch us")] == names


@pytest.mark.nightly
def test_every_other_shape_is_measured(run: Run) -> None:
    result = run("other shapes")
    names = [name for name in BY_NAME if not any(name in shapes for shapes in WITH_PEERS.values())]
    check_race(result, sorted(names, key=[*BY_NAME].index), set(), {})
    assert result.record["settings"]["seed"] == 1
    large = [each["data"] for each in result.record["scenarios"] if each["scenario"].endswith("-large")]
    assert len(large) == 3 and all(text.startswith("synthetic data, 2 copies: ") for text in large)


@pytest.mark.nightly
def test_policies_are_trained_and_run(run: Run, rollouts: Path) -> None:
    result = run("learning", source=rollouts)
    assert result.status == 0, result.errors
    (returns,) = result.record["bc"]["returns"]
    assert len(returns) == 2
    assert all(-3000 < each < 0 for each in returns)
    table = rows_of(result.printed, "target")
    assert [row[0] for row in table] == ["-200.0", "-1000.0"]
    # Of the same windows, in other orders: the models differ, and their returns too.
    feeds = result.record["dt"]
    assert list(feeds) == ["published", "gear-data", "dropout", "end"]
    assert all(np.shape(feeds[name]["returns"]["-200.0"]) == (1, 2) for name in feeds)


def test_one_policy_is_trained(run: Run, rollouts: Path) -> None:
    result = run("learning of one policy", source=rollouts)
    assert result.status == 0, result.errors
    assert "Behaviour cloning" not in result.printed
    assert "Seconds of training, dropout" in result.printed and "published" not in result.printed


def test_parts_without_contenders(run: Run, source: Path) -> None:
    result = run("gear-data only", source=source)
    assert result.status == 0, result.errors
    assert result.record["scenarios"] == []
    assert result.record["settings"] == {"seconds": 0.02, "repetitions": 2, "seed": 0}
    check_wait(result, ["hopper-64x100"])
    check_memory(result, ["1000", "2000"])
    check_profile(result, ["hopper-64x100"])


def test_tuning_is_compared_with_all_settings(run: Run) -> None:
    result = run("tuning")
    assert result.status == 0, result.errors
    cases = {case["case"]: case for case in result.record["cases"]}
    assert list(cases) == [case.name for case in tune.CASES]
    for case in cases.values():
        settings = {each["setting"] for each in case["exhaustive"]}
        assert len(settings) == len(case["exhaustive"]) == len(case["tuning"]["settings"]) > 16
        assert case["best"] in settings and case["ratio"] > 0
    # The first table. Its rows are sorted, the best first.
    rows = rows_of(result.printed, "to the best")
    assert rows[0][4] == "1.00" and sum(row[-1] == "chosen" for row in rows) == 1
    assert result.printed.count("| chosen |") == len(cases)
    assert f"(target {tune.TARGET}: " in result.printed


def test_another_checkout_is_measured_beside_this_one(run: Run, checkout: Path) -> None:
    result = run("another checkout", checkout=checkout)
    assert result.status == 0, result.errors
    rows = result.record["scenarios"][0]["contenders"]
    names = [INLINE, THREADS, f"{INLINE}@{checkout.name}", f"{THREADS}@{checkout.name}"]
    assert [row["name"] for row in rows] == names
    assert all(row["inline_ratio"] > 0 for row in rows)
    stages = run("stages of another checkout", checkout=checkout)
    assert stages.status == 0, stages.errors
    check_profile(stages, [f"hopper-64x100, {checkout.name}", "hopper-64x100"])


@pytest.mark.nightly
def test_a_peer_that_cannot_be_installed_is_reported(run: Run) -> None:
    result = run("a peer that cannot be installed")
    failure = "not installable: ERROR: No matching distribution found"
    check_race(result, ["hopper-64x100"], {"hf"}, {"hf": failure})
    assert f"HF datasets rows + collator, states only: not measured: {failure}" in result.printed
