"""Rows on disk."""

from __future__ import annotations

import pytest

from infhess.cli.rows import Row, RowFile


def test_rows_survive_a_failure_while_writing(tmp_path):
    file = RowFile(tmp_path)
    file.add([Row("e", "p", "m", metric=1.0)])

    def broken():
        yield Row("e", "p", "n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file.add(broken())
    assert [r.method for r in RowFile(tmp_path).rows] == ["m"]
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_dropped_rows_leave_the_file_with_the_next_job(tmp_path):
    RowFile(tmp_path).add([Row("e", "p", method) for method in "ab"])
    file = RowFile(tmp_path)
    file.drop(lambda row: row.method == "a")
    assert [r.method for r in RowFile(tmp_path).rows] == ["a", "b"]
    file.add([Row("e", "p", "c")])
    assert [r.method for r in RowFile(tmp_path).rows] == ["b", "c"]
