"""Rows of language in items, against the rows of the Parquet file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import UnsupportedColumnError
from gear_data.integrations.lerobot.frame_items import FrameItems
from tests.integrations.lerobot.conftest import Recorded

_FIELDS = [("role", pa.string()), ("content", pa.string()), ("style", pa.string()), ("camera", pa.string())]
_EVENT = pa.struct([*_FIELDS, ("tool_calls", pa.list_(pa.string()))])
_PERSISTENT = pa.struct([*_FIELDS, ("timestamp", pa.float32()), ("tool_calls", pa.list_(pa.string()))])


def test_language_is_as_in_the_file(recorded: Recorded, tmp_path: Path) -> None:
    """As LeRobot 0.6 gives it: a list of rows for each step."""
    said = {"role": "user", "content": "go on", "style": "interjection", "camera": None, "tool_calls": None}
    rows = {
        step: (episode, step - first)
        for episode, (first, last) in enumerate(zip(recorded.first, recorded.last, strict=True))
        for step in range(first, last)
    }
    plan = {"role": "assistant", "style": "plan", "camera": None, "tool_calls": None, "timestamp": 0.1}
    persistent = [[plan | {"content": f"plan {episode}"}] if episode else [] for episode, _ in rows.values()]
    events = [[said] if at == 1 else [] for _, at in rows.values()]
    table = pa.table({name: values.tolist() for name, values in recorded.rows.items() if values.ndim < 3})
    table = table.append_column("language_persistent", pa.array(persistent, pa.list_(_PERSISTENT)))
    table = table.append_column("language_events", pa.array(events, pa.list_(_EVENT)))
    (tmp_path / "source/data/chunk-000").mkdir(parents=True)
    (tmp_path / "source/meta").mkdir()
    pq.write_table(table, tmp_path / "source/data/chunk-000/file-000.parquet")
    info = json.loads((recorded.root / "meta/info.json").read_text())
    features = {key: each for key, each in info["features"].items() if each["dtype"] != "video"}
    features |= {key: {"dtype": "language", "shape": [1]} for key in ("language_persistent", "language_events")}
    (tmp_path / "source/meta/info.json").write_text(json.dumps(info | {"features": features}))
    gear_data.convert(tmp_path / "source", tmp_path / "dataset", progress=False)
    ds = gear_data.open(tmp_path / "dataset")
    others = {key: recorded.rows[key] for key in features if key in recorded.rows}
    found = FrameItems(ds, features, {}, others=others)(np.arange(len(rows)))
    wanted = table.select(["language_persistent", "language_events"]).to_pylist()
    assert [{key: item[key] for key in wanted[0]} for item in found] == wanted
    with pytest.raises(UnsupportedColumnError, match="stack"):
        FrameItems(ds, features, {"language_events": [0]}, others=others)
