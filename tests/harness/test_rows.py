"""Rows on disk."""

from __future__ import annotations

import pytest

from infhess.harness.rows import Row, RowFile


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
