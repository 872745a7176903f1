"""Tests findings: each appears where it should, and clean data has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import EmptySourceError, FindingError, GearError
from gear_data.ingest.findings.dataset_checks import check_dataset
from gear_data.ingest.findings.episode_checks import check_episodes
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.findings.observation_jumps import find_jumps
from gear_data.ingest.pipeline.end_flags import check_end_flags, complete_end_flags
from gear_data.storage.episode_block import BEGIN, EpisodeBlock

Array = npt.NDArray[Any]


def source_of(episode: int) -> tuple[str, int]:
    """Returns a file and a row for an episode."""
    return f"file{episode}", 10 * episode


def swing(seed: int, steps: int = 200) -> Array:
    """Returns observations with a random start, float32 [steps, 6].

    They are position and speed of two damped springs that are kicked sometimes, and a phase that changes once.
    """
    rng = np.random.default_rng(seed)
    state = rng.normal(size=4)
    rows = []
    for t in range(steps):
        position, speed = state[:2], state[2:]
        speed = speed + 0.1 * (-position - 0.1 * speed + rng.normal(size=2) * 0.3)
        if rng.random() < 0.03:
            speed = speed + rng.normal(size=2) * 0.15
        state = np.concatenate([position + 0.1 * speed, speed])
        rows.append([*state, float(t > steps // 3), 7.0])
    return np.array(rows, np.float32)


def jumps(episodes: Sequence[Array]) -> list[tuple[int, int]]:
    return find_jumps(np.concatenate(episodes), np.array([len(e) for e in episodes]))


def block_of(observations: Sequence[Array], **columns: Array) -> EpisodeBlock:
    lengths = np.array([len(o) for o in observations])
    return EpisodeBlock(
        position=BEGIN,
        lengths=lengths,
        columns={"observations": np.concatenate(observations), **columns},
        sources=[f"file{i}" for i in range(len(lengths))],
        rows=100 * np.arange(len(lengths)),
        has_final=np.zeros(len(lengths), np.bool_),
    )


def codes(report: Any) -> list[str]:
    return [finding.code for finding in report.findings]


class TestJumps:
    def test_two_joined_rollouts_are_found_where_they_meet(self) -> None:
        whole = [swing(seed) for seed in range(40)]
        assert jumps(whole) == []
        cuts = np.random.default_rng(0).integers(40, 200, 20)
        glued = [np.concatenate([whole[i][: cuts[i]], whole[i + 20]]) for i in range(20)]
        found = jumps([*whole[:3], *glued])
        expected = {(3 + i, int(cuts[i]) - 1) for i in range(20)}
        assert set(found) <= expected
        assert len(found) >= 14

    def test_a_dropped_frame_is_not_a_jump(self) -> None:
        episodes = [np.delete(swing(seed), slice(100, 103), axis=0) for seed in range(20)]
        assert jumps(episodes) == []

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_a_teleport_is_found_in_every_dtype(self, dtype: type) -> None:
        episode = np.concatenate([swing(1)[:, :4], swing(1)[:, :4] + 20]).astype(dtype)
        assert jumps([swing(0)[:, :4].astype(dtype), episode]) == [(1, 199)]

    def test_unsuitable_episodes_are_not_checked(self) -> None:
        teleport = np.concatenate([swing(1), swing(1) + 20])
        assert jumps([teleport]) == [(0, 199)]
        assert jumps([teleport[190:210]]) == []  # too short to estimate usual movement
        rarely_moves = np.zeros((200, 3), np.float32)
        rarely_moves[100:] = 1
        assert jumps([rarely_moves]) == []
        assert jumps([np.full((200, 3), 2, np.float32)]) == []
        noise = np.random.default_rng(0).normal(size=(200, 300, 3)).astype(np.float32)
        assert jumps(list(noise)) == []

    def test_an_element_with_nan_or_inf_does_not_hide_the_others(self) -> None:
        teleport = np.concatenate([swing(1), swing(1) + 20])
        teleport[17, 0], teleport[300, 1] = np.nan, np.inf
        assert jumps([teleport, swing(2)]) == [(0, 199)]
        assert jumps([np.full((200, 3), np.nan, np.float32)]) == []

    def test_episodes_are_checked_independently(self) -> None:
        rng = np.random.default_rng(5)
        episodes = [swing(seed, int(rng.integers(1, 400))) for seed in range(60)]
        for i in range(0, 60, 7):
            episodes[i] = np.concatenate([episodes[i], swing(99) + 15])
        alone = [(i, step) for i, episode in enumerate(episodes) for _, step in jumps([episode])]
        assert jumps(episodes) == alone
        assert len(alone) >= 7

    def test_a_jump_is_a_finding_with_its_place(self) -> None:
        observations = [swing(1), np.concatenate([swing(2), swing(2) + 20])]
        for rows_are_steps, row in ((True, 100 + 199), (False, 100)):
            findings = FindingLog()
            check_episodes(block_of(observations), findings, rows_are_steps=rows_are_steps)
            (finding,) = findings
            assert (finding.code, finding.count, finding.file, finding.row, finding.column) == (
                "observation-jump", 1, "file1", row, "observations",
            )  # fmt: skip
            assert "step 199" in finding.message

    def test_only_float_vectors_of_observations_are_checked(self) -> None:
        teleport = np.concatenate([swing(2), swing(2) + 20])
        steps = len(teleport)
        others = {
            "actions": teleport,
            "observations.image": np.repeat(teleport[:, :, None], 2, axis=2),
            "observations.count": (teleport * 100).astype(np.int32),
            "observations.table": np.repeat(teleport, 200, axis=1),
            "observations.state": teleport,
            "observations.height": teleport[:, 0].copy(),
        }
        findings = FindingLog()
        check_episodes(block_of([np.zeros((steps, 0), np.float32)], **others), findings, rows_are_steps=True)
        assert [finding.column for finding in findings] == ["observations.state", "observations.height"]

    def test_real_rollouts_have_no_jumps_and_joined_ones_do(self, shared_data: Path) -> None:
        table = pq.read_table(next((shared_data / "hf_dt_hopper/data").glob("*.parquet")), columns=["observations"])
        hopper = [np.array(row.as_py(), np.float32) for row in table["observations"][:120]]
        robot = [
            np.stack(pq.read_table(path)["observation.state"].to_numpy(zero_copy_only=False))
            for path in sorted((shared_data / "lerobot_v21_g1/data").rglob("*.parquet"))[:40]
        ]
        with h5py.File(shared_data / "robot_soccer_d4rl/trajectories.hdf5") as file:
            soccer = list(file["observations"][()].reshape(10, 2000, 8))
        for episodes, rate in ((hopper, 0.9), (robot, 0.8), (soccer, 0.95)):
            assert jumps(episodes) == []
            pairs = list(zip(episodes[::2], episodes[1::2], strict=True))
            found = set(jumps([np.concatenate(pair) for pair in pairs]))
            hits = [(i, len(first) - 1) in found for i, (first, _) in enumerate(pairs)]
            assert np.mean(hits) >= rate


class TestFindings:
    def test_episodes_of_one_step(self) -> None:
        findings = FindingLog()
        check_episodes(block_of([swing(0, 3), swing(1, 1), swing(2, 1)]), findings, rows_are_steps=True)
        assert [(f.code, f.count, f.file, f.row) for f in findings] == [("one-step-episode", 2, "file1", 100)]

    def test_both_flags_are_kept(self) -> None:
        flags = np.array([False, False, True, False, True])
        block = block_of([swing(0, 3), swing(1, 2)], terminated=flags, truncated=flags & [0, 0, 0, 0, 1])
        findings = FindingLog()
        ready = complete_end_flags(block, findings)
        assert not list(findings)
        check_end_flags(ready, findings)
        assert [(f.code, f.count, f.file, f.row) for f in findings] == [("both-flags", 1, "file1", 100)]
        assert ready.columns["terminated"].tolist() == flags.tolist()
        assert ready.columns["truncated"].tolist() == [False, False, False, False, True]

    def test_duplicates(self) -> None:
        contents = b"".join(bytes([i]) * 16 for i in (5, 3, 5, 9, 3, 5, 200))
        findings = FindingLog()
        check_dataset(findings, {}, contents[:32], 9, source_of)
        check_dataset(findings, {}, b"", 0, source_of)
        assert not list(findings)
        check_dataset(findings, {}, contents, 9, source_of)
        assert [(f.code, f.count, f.file, f.row) for f in findings] == [("duplicate-episode", 3, "file2", 20)]
        assert "episode 2 as episode 0;" in next(iter(findings)).message

    def test_declared_totals(self) -> None:
        contents = b"a" * 16 + b"b" * 16
        declared = {"total_episodes": 2, "total_frames": 31, "total_steps": 30}
        findings = FindingLog()
        check_dataset(findings, declared, contents, 30, source_of)
        assert [(f.code, f.column) for f in findings] == [("metadata-disagrees", "total_frames")]
        findings = FindingLog()
        findings.add(Finding("bad-episode", "left out"))
        check_dataset(findings, declared, contents, 30, source_of)
        assert [f.code for f in findings] == ["bad-episode"]

    def test_equal_codes_add_up_and_keep_the_first_place(self) -> None:
        findings = FindingLog()
        findings.add(Finding("a", "first; kept", 2, "x", 1, "c"))
        findings.add(Finding("a", "second; kept", 3, "y", 2, "c"))
        findings.add(Finding("a", "other column; kept", 1, "y", 2, "d"))
        merged = FindingLog()
        merged.restore([*findings.to_json(), *findings.to_json()])
        assert [(f.message, f.count, f.file, f.row) for f in merged] == [
            ("first; kept", 10, "x", 1),
            ("other column; kept", 2, "y", 2),
        ]

    def test_strict_log(self) -> None:
        finding = Finding("a-code", "is odd; kept", 2, "x", 1, "c")
        findings = FindingLog()
        findings.make_strict()
        with pytest.raises(FindingError, match=r"x, column 'c', row 1: a-code: is odd; kept(.|\n)*lint"):
            findings.add(finding)
        assert list(findings) == []
        late = FindingLog()
        late.add(finding)
        with pytest.raises(FindingError, match="a-code"):
            late.make_strict()


class TestLint:
    def test_findings_equal_those_of_a_conversion(self, tmp_path: Path, sources: Any) -> None:
        rollouts = sources.make_rollouts(9, max_length=6)
        rollouts = [*rollouts, rollouts[3], rollouts[5]]
        source = sources.write_episodes(tmp_path / "s.parquet", rollouts)
        before = sources.folder_contents(tmp_path)
        report = gear_data.lint(str(source), progress=False)
        assert sources.folder_contents(tmp_path) == before
        assert (report.episodes, report.steps) == (11, sum(len(r) for r in rollouts))
        found = {finding.code: finding for finding in report.findings}
        singles = [len(rollout) == 1 for rollout in rollouts]
        assert found["one-step-episode"].count == sum(singles)
        assert found["one-step-episode"].row == singles.index(True)
        assert (found["duplicate-episode"].count, found["duplicate-episode"].file) == (2, "s.parquet")
        gear_data.convert(source, tmp_path / "d")
        kept = gear_data.open(tmp_path / "d").manifest.findings
        assert [(f["code"], f["count"], f["message"]) for f in kept] == [
            (f.code, f.count, f.message) for f in report.findings
        ]
        assert report.to_json()["findings"][0]["code"] == report.findings[0].code

    def test_clean_data_has_no_findings(self, tmp_path: Path, sources: Any) -> None:
        rollouts = [r for r in sources.make_rollouts(9) if len(r) > 1]
        report = gear_data.lint(sources.write_episodes(tmp_path / "s.parquet", rollouts), progress=False)
        assert report.findings == ()
        assert report.episodes == len(rollouts)

    def test_bad_episodes_are_reported_and_left_out(self, tmp_path: Path, sources: Any) -> None:
        rollouts = [r for r in sources.make_rollouts(9) if len(r) > 1]
        columns = [dict(r.columns) for r in rollouts]
        columns[2]["rewards"] = columns[2]["rewards"][:-1]
        source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
        report = gear_data.lint(source, progress=False)
        assert codes(report) == ["bad-episode"]
        assert (report.findings[0].row, report.findings[0].file) == (2, "s.parquet")
        assert report.episodes == len(rollouts) - 1

    def test_no_episode_and_no_source(self, tmp_path: Path, sources: Any) -> None:
        columns = [dict(r.columns) for r in sources.make_rollouts(2)]
        for episode in columns:
            episode["rewards"] = np.zeros(len(episode["rewards"]) + 1, np.float32)
        source = sources.write_parquet(tmp_path / "s.parquet", sources.episode_table(columns))
        with pytest.raises(EmptySourceError):
            gear_data.lint(source, progress=False)
        with pytest.raises(GearError):
            gear_data.lint(tmp_path / "none", progress=False)

    def test_strict_refuses_findings(self, tmp_path: Path, sources: Any) -> None:
        rollouts = [r for r in sources.make_rollouts(9) if len(r) > 1]
        clean = sources.write_episodes(tmp_path / "clean.parquet", rollouts)
        gear_data.convert(clean, tmp_path / "d", strict=True)
        for name, odd in (("double", [*rollouts, rollouts[2]]), ("single", sources.make_rollouts(3))):
            source = sources.write_episodes(tmp_path / f"{name}.parquet", odd)
            with pytest.raises(FindingError, match="strict"):
                gear_data.convert(source, tmp_path / name, strict=True)
            with pytest.raises(GearError):
                gear_data.open(tmp_path / name)
