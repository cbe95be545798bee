"""A page of a long run reads some of its rows, spread over all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from specsim.report.page import Stored


def test_some_row_groups_of_the_point_are_read(tmp_path: Path) -> None:
    with pq.ParquetWriter(
        tmp_path / "steps.parquet",
        pa.schema([("policy", pa.string()), ("concurrency", pa.int64()), ("end_s", pa.float64())]),
    ) as writer:
        for part in range(40):
            for policy, load in (("a", 1), ("a", 2), ("b", 1)):
                end_s = part + np.linspace(0, 1, 5)
                writer.write_table(
                    pa.table({"policy": [policy] * 5, "concurrency": [load] * 5, "end_s": end_s})
                )
    stored = Stored(tmp_path, {}, {})
    assert len(stored.columns("steps", "a", 1)["end_s"]) == 40 * 5
    end_s = stored.columns("steps", "a", 1, most_groups=16)["end_s"]
    assert len(end_s) == 16 * 5
    assert (np.diff(end_s) >= 0).all()
    assert end_s[0] <= 2
    assert end_s[-1] >= 38
    assert stored.columns("steps", "a", 1, most_groups=1)["end_s"][0] == 20  # the middle one
    assert stored.columns("steps", "c", 1) == {}
    assert len(stored.columns("steps", "b", None)["end_s"]) == 40 * 5
    assert stored.columns("requests", "a", 1) == {}
