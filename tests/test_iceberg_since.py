"""An Iceberg table is followed by what changed: read in part, with what the target knows, as with everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.model.paths import PathMap
from bridge.ports import Silent
from tests.iceberg_parts import Part, opened, partial_readings
from tests.support import ROOT, case, lake_rows
from tests.test_mirror import Mirrored, does

__all__: list[str] = []

# position deletes of one file and of a partition, several of a file, vectors and those that take their place, files
# that go with their deletes, deletes that are compacted
POSITIONS = (
    *("v2_mor", "v2_mor_2files", "v2_mor_twice", "v2_mor_partgran", "v2_mor_partgran_twice", "v2_mor_dropfile"),
    *("v2_mor_update_merge", "v2_mor_rewrite_pos", "v2_mor_orc_deletes", "v2_mor_avro_deletes"),
    *("v3_dv", "v3_dv_multi", "v3_dv_twice", "v3_dv_then_insert", "v3_lineage"),
)
OTHERS = ("v2_mor_compact", "v2_eqdel", "v2_eqdel_pos", "v3_upgraded", "v3_upgraded_plain", "v2_cow", "evo_readd")


def readings(kind: str) -> list[Part]:
    found = case(kind)
    moved = PathMap(tuple((old, str(found.home / new)) for old, new in found.facts["map_prefix"]))
    return partial_readings(str(found.metadata), bridge.Options(check_files="none", path_map=moved))


@pytest.mark.parametrize("kind", POSITIONS)
def test_deletes_of_rows_open_no_manifest_from_before(kind: str) -> None:
    assert {(each.partial, each.opened) for each in readings(kind)} == {(True, ())}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_changed_is_read_as_with_everything(kind: str) -> None:
    assert all(each.partial for each in readings(kind))


@pytest.fixture
def growing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A table of forty files in days of their own, ten to a snapshot, of which only two are there: whoever opens
    another fails."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_metadata
    from iceberg_commits import Growing

    shape = bench_metadata.Shape(40, 10)
    bench_metadata.generate(tmp_path, shape, (5, 17))
    return Growing(tmp_path / shape.name)


@pytest.mark.parametrize("version", [2, 3])
def test_small_deletes_open_nothing_that_they_do_not_concern(version: int, growing: Any, tmp_path: Path) -> None:
    lake = tmp_path / "lake.db"

    def read(**more: Any) -> list[str]:
        """The manifests and position delete files that a round opens."""
        growing.save()
        pair = Pair(f"iceberg:{growing.home}", f"ducklake:{lake}", bridge.Options(verify="metadata", **more))
        with opened() as seen:
            made = catch_up(pair, Silent())
        assert made.exit_code == 0, (made.error, made.tables)
        return sorted(what for what, _ in set(seen) if what in ("manifest", "delete file"))

    if version == 3:
        growing.upgrade()
    growing.append(40)
    read(check_files="none", accept=frozenset({"unchecked-doubt"}))
    if version == 3:
        growing.vector(5, range(3, 9))
        assert read() == ["manifest"]
    else:
        growing.positions(5, range(3, 9), scoped=True)
        assert read() == ["delete file", "manifest"]
        growing.positions(5, range(6, 12), scoped=False)
        assert read() == ["delete file", "manifest"]
    growing.equality(5, [4, 20, 21])
    growing.equality(17, [0])
    assert read() == ["manifest"] * 4, "their own, and of those that were there the one that holds each day"
    # the row of position 4 is deleted already
    gone = [6 + 2 if version == 3 else 9 + 2, 1]
    query = "SELECT d.row_id_start, count(DISTINCT row_id) FROM ducklake_inlined_delete_1 i JOIN ducklake_data_file d "
    found = lake_rows(lake, query + "ON i.file_id = d.data_file_id GROUP BY ALL ORDER BY ALL")
    assert [count for _, count in found] == gone
    [(rows,)] = lake_rows(lake, "SELECT count(*) FROM ducklake_inlined_delete_1")
    assert rows == sum(gone), "no position is noted twice"
    growing.check(41, growing.metadata["last-sequence-number"] - 5)


def test_an_owned_table_is_followed_by_what_changed(tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, options=bridge.Options(verify="none", ownership="adopt"))
    life = mirrored.add()
    does(life, "append", "append", "append")
    mirrored.round()
    does(life, "append")
    with opened() as seen:
        mirrored.round()
    assert [what for what, _ in seen].count("manifest") == 1
    assert mirrored.wrong() == []
