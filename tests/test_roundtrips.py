"""There and back: what a table keeps on the way through the other format, and each thing that it cannot."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import bridge
from converters.iceberg.avro import read_records
from tests.iceberg_judge import Published, judge_iceberg
from tests.support import case, lake_rows, opened, use
from tests.test_kinds import migrated
from tests.test_publish import CHANGES, Lake, current, snapshots

pytestmark = pytest.mark.slow
KINDS = ("comments", "evo_readd", "evo_struct", "ref_tag", "v2_mor_twice", "v3_lineage", "spec_evo")


def back(kind: str, home: Path, **more: Any) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """(the source's metadata, that of the table that came back, and its file)."""
    lake = home / "lake.ducklake"
    assert migrated(kind, lake, verify="none").exit_code == 0
    options = bridge.Options(verify="none", **more)
    report = bridge.migrate(f"ducklake:{lake}", f"iceberg:{home / 'warehouse'}", options)
    assert report.exit_code == 0, report.plan.tables[0].blockers
    path, metadata = current(home / "warehouse" / "main" / "t")
    content = case(kind).metadata.read_bytes()
    source = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    return source, metadata, path


def fields(schema: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["id"], each["name"]) for each in schema["fields"]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_iceberg_table_comes_back_with_its_ids_uuid_history_and_rows(kind: str, tmp_path: Path) -> None:
    source, metadata, path = back(kind, tmp_path)
    found = case(kind)
    assert metadata["table-uuid"] == source["table-uuid"]
    assert metadata["last-column-id"] >= source["last-column-id"]
    known = {each["snapshot-id"]: each for each in source["snapshots"]}
    ids = [each["snapshot-id"] for each in metadata["snapshots"] if each["snapshot-id"] in known]
    assert ids == [each["snapshot_id"] for each in found.facts["snapshots"]]
    became = {each["snapshot_id"]: each["became_current_ms"] for each in found.facts["snapshots"]}
    for each in metadata["snapshots"]:
        if each["snapshot-id"] in became:
            assert each["timestamp-ms"] == became[each["snapshot-id"]]
    newest = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    wanted = next(each for each in source["schemas"] if each["schema-id"] == source["current-schema-id"])
    assert fields(newest) == fields(wanted)
    for key, value in (source.get("properties") or {}).items():
        assert metadata["properties"][key] == value
    versions = [(each["snapshot_id"], found.rows(each["rows"])) for each in found.facts["snapshots"]]
    subject = Published(kind, path, (*versions, (None, found.rows(found.facts["current"]))))
    faults = judge_iceberg([subject], ["pyiceberg"], tmp_path / "judge")
    assert kind == "evo_struct" or faults == []  # PyIceberg and NULL structs: see test_publish


def test_references_come_back_as_tags(tmp_path: Path) -> None:
    source, metadata, _ = back("ref_tag", tmp_path)
    for name, ref in source["refs"].items():
        if name != "main":
            assert metadata["refs"][name] == {"snapshot-id": ref["snapshot-id"], "type": "tag"}


def test_row_ids_come_back(tmp_path: Path) -> None:
    source, metadata, _ = back("v3_lineage", tmp_path, format_version=3)
    assert metadata["next-row-id"] >= source["next-row-id"]


def current_spec(metadata: dict[str, Any]) -> dict[str, Any]:
    [found] = [each for each in metadata["partition-specs"] if each["spec-id"] == metadata["default-spec-id"]]
    return dict(found)


def entries(metadata: dict[str, Any]) -> list[tuple[int, int, str, Any]]:
    """(content, spec, the data file, the partition) of what the newest snapshot lists."""
    [newest] = [each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"]]
    found = []
    for listed in read_records(Path(newest["manifest-list"]).read_bytes()):
        for each in read_records(Path(listed["manifest_path"]).read_bytes()):
            file = each["data_file"]
            if each["status"] != 2:
                path = file["referenced_data_file"] if listed["content"] else file["file_path"]
                found.append((listed["content"], listed["partition_spec_id"], path, file["partition"]))
    return found


@pytest.mark.parametrize(
    ("kind", "proved"), [("part_days_ts", True), ("spec_evo", True), ("part_bucket", False), ("v1_part_void", False)]
)
def test_a_partition_spec_comes_back_and_files_lie_in_it_where_that_is_proved(
    kind: str, proved: bool, tmp_path: Path
) -> None:
    source, metadata, _ = back(kind, tmp_path)
    wanted, found = current_spec(source), current_spec(metadata)
    keys = ("source-id", "field-id", "transform")
    assert [[each[key] for key in keys] for each in found["fields"]] == [
        [each[key] for key in keys] for each in wanted["fields"]
    ]
    assert any(spec == found["spec-id"] for _, spec, _, _ in entries(metadata)) == proved


def test_deletes_lie_in_the_partition_of_their_file_whatever_the_lake_declares_later(tmp_path: Path) -> None:
    _, metadata, _ = back("partitioned_identity_promoted", tmp_path)
    before = {path: (spec, partition) for content, spec, path, partition in entries(metadata) if not content}
    lake = tmp_path / "lake.ducklake"
    for change in (
        ["CALL lake.set_option('data_inlining_row_limit', 0)"],
        ["ALTER TABLE lake.t RESET PARTITIONED BY"],
    ):
        assert use(str(lake), [*change, "DELETE FROM lake.t WHERE id IN (SELECT min(id) FROM lake.t)"]) == ["", ""]
        options = bridge.Options(verify="none")
        assert bridge.migrate(f"ducklake:{lake}", f"iceberg:{tmp_path / 'warehouse'}", options).exit_code == 0
        path, metadata = current(tmp_path / "warehouse" / "main" / "t")
        deletes = [each[1:] for each in entries(metadata) if each[0]]
        assert deletes and [each for each in deletes if before[each[1]] != (each[0], each[2])] == []
        assert {len(partition) for _, _, partition in deletes} & {1}
    assert not current_spec(metadata)["fields"]
    with opened(lake) as there:
        rows = there.execute("SELECT * FROM t").to_arrow_table()
    assert judge_iceberg([Published("t", path, ((None, rows),))], ["pyiceberg", "duckdb"], tmp_path / "judge") == []


def test_a_lake_comes_back_with_its_ids_history_rows_and_row_ids(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.do(*CHANGES)
    assert lake.publish(verify="none", format_version=3).exit_code == 0
    path, metadata = current(lake.warehouse / "main" / "t")
    again = tmp_path / "again.ducklake"
    report = bridge.migrate(f"iceberg:{path}", f"ducklake:{again}", bridge.Options(rename="main.t"))
    assert report.exit_code == 0, report.plan.tables[0].blockers
    query = "SELECT column_id, column_name FROM ducklake_column WHERE end_snapshot IS NULL ORDER BY 1"
    assert lake_rows(again, query) == lake_rows(lake.file, query)
    uuid = "SELECT table_uuid::VARCHAR FROM ducklake_table WHERE table_name = 't' ORDER BY begin_snapshot DESC LIMIT 1"
    assert lake_rows(again, uuid) == lake_rows(lake.file, uuid)
    noted = {
        each["commit"]: number
        for number, info in lake_rows(
            again, "SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes ORDER BY 1"
        )
        for each in json.loads(info or "{}").get("tables", [])
    }
    held = snapshots(metadata)
    with opened(lake.file) as first, opened(again) as second:
        for commit, snapshot in held.items():
            one = first.execute(f"SELECT rowid, * FROM t AT (VERSION => {commit}) ORDER BY ALL").fetchall()
            other = second.execute(
                f"SELECT rowid, * FROM t AT (VERSION => {noted[str(snapshot)]}) ORDER BY ALL"
            ).fetchall()
            assert one == other, commit


def test_what_iceberg_has_not_is_said(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.do(
        "CREATE TABLE t(id BIGINT DEFAULT 7, made TIMESTAMP DEFAULT now(), small TINYINT)",
        "INSERT INTO t(id, small) VALUES (1, 2)",
        "ALTER TABLE t SET SORTED BY (abs(id))",
        "CREATE MACRO twice(x) AS x * 2",
        "CREATE VIEW v AS SELECT * FROM t",
    )
    report = lake.publish()
    assert report.exit_code == 0
    said = {each.code.text for table in report.plan.tables for each in table.findings}
    said |= {each.code.text for each in report.plan.findings}
    assert {"default-lost", "sort-order", "type-mapped", "macro-not-carried", "view-not-carried"} <= said
    assert use(str(lake.file), ["SELECT 1"]) == [""]
