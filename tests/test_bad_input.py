"""Bad input ends as one line with the file's name and its documented exit code; nothing is written, nothing hangs."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bridge
from tests.support import ROOT, Case, case, lake_rows, migrate_case, run_here, tree_hash, use
from tests.test_ownership import copied

Json = dict[str, Any]


def attempt(found: Case, lake: Path, **more: Any) -> bridge.Report:
    """Migrate in this process; every error but a BridgeError is a fault of ours."""
    pairs = tuple((old, str(found.home / new)) for old, new in found.facts["map_prefix"])
    given = {"rename": "main.t", "verify": "none", "rewrite": "never", "path_map": bridge.PathMap(pairs), **more}
    options = bridge.Options(**given)
    return bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", options)


def refused(found: Case, lake: Path, **more: Any) -> str:
    """The code or kind of the refusal; the lake must not be there."""
    try:
        report = attempt(found, lake, **more)
    except bridge.BridgeError as error:
        assert error.exit_code in (3, 6) and "\n" not in str(error)
        kind = getattr(error, "code", type(error).__name__)
    else:
        assert report.exit_code == 3, [each.action for each in report.plan.tables]
        kind = report.plan.tables[0].blockers[0].code.text
    assert not lake.exists() and not [path for path in lake.parent.iterdir() if ".bridge-" in path.name]
    return str(kind)


@pytest.fixture
def table(tmp_path: Path) -> Case:
    """A table of its own to damage."""
    return copied("spec_evo_back2", tmp_path / "source")


def edit(found: Case, change: Callable[[Json], object]) -> None:
    stored = json.loads(found.metadata.read_text())
    change(stored)
    found.metadata.write_text(json.dumps(stored))


def newest(stored: Json) -> Json:
    [snapshot] = [each for each in stored["snapshots"] if each["snapshot-id"] == stored["current-snapshot-id"]]
    assert isinstance(snapshot, dict)
    return snapshot


METADATA: dict[str, Callable[[Json], object]] = {
    "format-version 4": lambda m: m.update({"format-version": 4}),
    "format-version true": lambda m: m.update({"format-version": True}),
    "no format-version": lambda m: m.pop("format-version"),
    "no location": lambda m: m.pop("location"),
    "empty location": lambda m: m.update(location=""),
    "location a number": lambda m: m.update(location=7),
    "uuid an object": lambda m: m.update({"table-uuid": {}}),
    "no manifest list": lambda m: newest(m).pop("manifest-list"),
    "empty manifest list": lambda m: newest(m).update({"manifest-list": ""}),
    "main without snapshot": lambda m: m["refs"]["main"].update({"snapshot-id": None}),
    "main elsewhere": lambda m: m["refs"]["main"].update({"snapshot-id": m["snapshots"][0]["snapshot-id"]}),
    "no current snapshot": lambda m: (m.pop("refs"), m.pop("current-snapshot-id")),
    "snapshot not listed": lambda m: m.update({"current-snapshot-id": 5, "refs": {}}),
    "snapshot twice": lambda m: m["snapshots"].append(dict(m["snapshots"][0])),
    "schema twice": lambda m: m["schemas"].append(dict(m["schemas"][0])),
    "unknown schema": lambda m: newest(m).update({"schema-id": 99}),
    "negative field id": lambda m: m["schemas"][0]["fields"][0].update(id=-5),
    "reserved field id": lambda m: m["schemas"][0]["fields"][0].update(id=2147483540),
    "huge field id": lambda m: m["schemas"][0]["fields"][0].update(id=2**70),
    "column name a number": lambda m: m["schemas"][0]["fields"][0].update(name=7),
    "column name null": lambda m: m["schemas"][0]["fields"][0].update(name=None),
    "column name a surrogate": lambda m: m["schemas"][0]["fields"][0].update(name="\ud800"),
    "unknown type": lambda m: m["schemas"][0]["fields"][0].update(type="float128"),
    "decimal too wide": lambda m: m["schemas"][0]["fields"][0].update(type="decimal(99,1)"),
    "time out of range": lambda m: newest(m).update({"timestamp-ms": 10**17}) or m.update({"snapshot-log": []}),
    "wrong row sum": lambda m: newest(m)["summary"].update({"total-records": "999"}),
    "encrypted snapshot": lambda m: newest(m).update({"key-id": "k"}),
    "snapshots an object": lambda m: m.update(snapshots={}),
    "fields missing": lambda m: m["schemas"][0].pop("fields"),
}


@pytest.mark.parametrize("what", METADATA)
def test_damaged_metadata(what: str, table: Case, tmp_path: Path) -> None:
    edit(table, METADATA[what])
    assert refused(table, tmp_path / "lake.ducklake") in (
        "metadata-unreadable", "format-version", "type-unsupported", "row-summary", "table-encrypted",
    )  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\x1f\x8b\x08",
        gzip.compress(b"{}", mtime=0)[:-4],
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{" + b" " * 100,
    ],
)
def test_metadata_that_is_no_document(content: bytes, table: Case, tmp_path: Path) -> None:
    table.metadata.write_bytes(content)
    assert refused(table, tmp_path / "lake.ducklake") == "metadata-unreadable"


def manifest_files(found: Case, prefix: str) -> list[Path]:
    return sorted(
        path for path in found.metadata.parent.glob("*.avro") if path.name.startswith("snap-") == (prefix == "list")
    )


@pytest.mark.parametrize("kind", ["list", "manifest"])
@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "swapped", "fifo"])
def test_damaged_manifests(kind: str, damage: str, table: Case, tmp_path: Path) -> None:
    other = manifest_files(table, "manifest" if kind == "list" else "list")[0].read_bytes()
    for path in manifest_files(table, kind):
        content = path.read_bytes()
        path.unlink()
        if damage == "fifo":
            os.mkfifo(path)
        elif damage != "missing":
            path.write_bytes(
                {"empty": b"", "text": b"hello", "cut": content[: len(content) * 2 // 3], "swapped": other}[damage]
            )
    assert refused(table, tmp_path / "lake.ducklake") in ("manifest-unreadable", "Unreachable")


@pytest.mark.slow
def test_flipped_bits_never_end_in_a_traceback(table: Case, tmp_path: Path) -> None:
    """Any outcome but an unexpected error: what still adds up may be migrated."""
    dice = random.Random(7)
    paths = [*manifest_files(table, "list"), *manifest_files(table, "manifest"), *table.home.rglob("*.parquet")]
    for round_ in range(25):
        path = dice.choice(paths)
        content = path.read_bytes()
        place = dice.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << dice.randrange(8))]) + content[place + 1 :])
        lake = tmp_path / f"lake{round_}.ducklake"
        try:
            attempt(table, lake)
        except bridge.BridgeError as error:
            assert error.exit_code in (3, 6), error
        path.write_bytes(content)


def rewrite_manifests(found: Case, change: Callable[[Json], object]) -> None:
    for path in manifest_files(found, "manifest"):
        with path.open("rb") as source:
            reader = fastavro.reader(source)
            schema, meta, records = reader.writer_schema, dict(reader.metadata), list(reader)
        for record in records:
            change(record)
        with path.open("wb") as sink:
            fastavro.writer(
                sink, schema, records, metadata={k: v for k, v in meta.items() if not k.startswith("avro.")}
            )


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.update(status=7),
        lambda e: e["data_file"].update(record_count=-1),
        lambda e: e["data_file"].update(record_count=12345),
        lambda e: e["data_file"].update(file_path="data/x.parquet"),
        lambda e: e["data_file"].update(file_path="hdfs://h/x.parquet"),
        lambda e: e["data_file"].update(file_path="/tmp/\0x"),
        lambda e: e["data_file"].update(file_path="/nothing/x.parquet"),
        lambda e: e["data_file"].update(file_format="LANCE"),
        lambda e: e["data_file"].update(key_metadata=b"k"),
        lambda e: e["data_file"].update(content=5),
    ],
)
def test_manifests_that_lie(change: Callable[[Json], object], table: Case, tmp_path: Path) -> None:
    rewrite_manifests(table, change)
    assert refused(table, tmp_path / "lake.ducklake") not in ("BridgeError", "")


def test_bounds_of_odd_lengths_are_no_bounds(table: Case, tmp_path: Path) -> None:
    def change(entry: Json) -> None:
        for key in ("lower_bounds", "upper_bounds"):
            entry["data_file"][key] = [
                {"key": each["key"], "value": b"\xff\xfe\xfd"} for each in entry["data_file"][key] or []
            ]

    rewrite_manifests(table, change)
    lake = tmp_path / "lake.ducklake"
    assert attempt(table, lake).exit_code == 0
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_file_column_stats WHERE min_value IS NOT NULL") == [(0,)]


@pytest.mark.parametrize(
    "damage", ["gone", "cut", "text", "empty", "directory", "other rows", "other columns", "fifo", "loop"]
)
def test_damaged_data_files(damage: str, table: Case, tmp_path: Path) -> None:
    for path in [each for each in table.home.rglob("*.parquet") if "expected" not in each.parts]:
        content, rows = path.read_bytes(), pq.read_table(path)
        path.unlink()
        if damage == "directory":
            path.mkdir()
        elif damage == "fifo":
            os.mkfifo(path)
        elif damage == "loop":
            path.symlink_to(path)
        elif damage == "other rows":
            pq.write_table(pa.concat_tables([rows, rows]), path)
        elif damage == "other columns":
            pq.write_table(rows.drop_columns([rows.column_names[0]]), path)
        elif damage != "gone":
            path.write_bytes({"cut": content[:-20], "text": b"hello world, hello", "empty": b""}[damage])
    assert refused(table, tmp_path / "lake.ducklake") in ("file-missing", "file-unreadable", "file-size", "Unreachable")


@pytest.mark.slow
def test_a_hint_that_lags_behind_is_followed(table: Case, tmp_path: Path) -> None:
    hint = table.home / "table" / "metadata" / "version-hint.text"
    hint.write_text("2")
    asked = ("plan", f"iceberg:{table.home}/table", f"ducklake:{tmp_path}/lake.ducklake", *table.maps)
    plan = run_here(*asked, "--json")
    assert plan.code == 0 and "metadata-guessed" in plan.codes()["note"]
    assert plan.json["tables"][0]["snapshots"] == len(table.facts["snapshots"])
    for text in ("²", "9" * 5000, "nothing"):
        hint.write_text(text)
        assert run_here(*asked).code == 6
    hint.unlink()
    shutil.copy(table.metadata, table.metadata.with_name(f"0000{table.metadata.name[1]}-x.metadata.json"))
    assert run_here(*asked).code == 2


def test_a_moved_table_says_how_to_map_it(tmp_path: Path) -> None:
    found = copied("v2_cow", tmp_path)
    said = run_here("plan", f"iceberg:{found.metadata}", f"ducklake:{tmp_path}/lake.ducklake")
    assert said.code == 3 and "--map-prefix" in said.out


def test_links_do_not_hide_that_the_data_path_lies_over_the_source(tmp_path: Path) -> None:
    found = copied("v2_cow", tmp_path)
    data = found.home / "table" / "data"
    data.rename(tmp_path / "pool")
    data.symlink_to(tmp_path / "pool")
    assert refused(found, tmp_path / "lake.ducklake", data_path=str(tmp_path / "pool")) == "data-path-overlap"


@pytest.mark.slow
def test_a_dropped_table_can_still_be_released(tmp_path: Path) -> None:
    found, lake = copied("v2_cow", tmp_path / "source"), tmp_path / "lake.ducklake"
    assert migrate_case(found, str(lake)).code == 0
    expire = "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)"
    said = use(str(lake), ["DROP TABLE lake.t", expire])
    assert said[0] == "" and "CHECK" in said[1]
    before = tree_hash(found.home)
    assert run_here("release", f"ducklake:{lake}", "--table", "t").code == 0
    assert use(str(lake), [expire, "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"]) == ["", ""]
    assert tree_hash(found.home) == before
    assert run_here("inspect", f"ducklake:{lake}", "--json").json["guarded"] is False


@pytest.mark.slow
def test_names_with_dots_and_quotes_are_undone_as_printed(tmp_path: Path) -> None:
    found, lake = copied("v2_cow", tmp_path / "source"), tmp_path / "lake.ducklake"
    odd = tmp_path / "a.b 'c"
    (found.home / "table").rename(odd)
    maps = [each.replace(str(found.home / "table"), str(odd)) for each in found.maps]
    ran = run_here("migrate", f"iceberg:{odd}", f"ducklake:{lake}", "--json", *maps)
    assert ran.code == 0, ran.out
    import shlex

    [undo] = [line for line in ran.json["next"] if line.startswith("undo:")]
    assert run_here(*shlex.split(undo.partition("ducklake-bridge")[2])).code == 0


def test_a_report_that_cannot_be_written_stops_before_the_commit(tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    ran = migrate_case(case("v1_basic"), str(lake), "--report", str(tmp_path / "no" / "report.json"))
    assert ran.code == 2 and not lake.exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "nothing", "ducklake:x"], 2),
        (["plan", "delta:x", "ducklake:x"], 2),
        (["plan", "iceberg:/nothing", "ducklake:x"], 6),
        (["plan", "iceberg:TABLE", "delta:x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--readers", "nobody"], 2),
        (["plan", "iceberg:TABLE", "iceberg:TABLE"], 2),
        (["plan", "iceberg:TABLE", "iceberg-catalog:nothing"], 2),
        (["plan", "iceberg:TABLE", "ducklake:mysql:db=x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:postgresql:dbname=x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:postgres:dbname=x host=/nothing"], 6),
        (["plan", "iceberg:TABLE", "ducklake:postgres:nothing=x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:postgres:dbname"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--metadata-schema", "s"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--table", "nothing"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--exclude", "**"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--as", ".t"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--as", "information_schema.t"], 3),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--accept", "nothing"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--accept", "file-missing"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--map-prefix", "x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--source-option", "uri=x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--target-option", "uri=x"], 2),
        (["release", "ducklake:LAKE", "--target-option", "uri=x"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--type-map", "int=long"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--at", "yesterday"], 2),
        (["plan", "iceberg:TABLE", "ducklake:LAKE", "--history", "some"], 2),
        (["plan", "iceberg:TABLE", "ducklake:/nothing/lake"], 6),
        (["plan", "iceberg:TABLE", "ducklake:DIRECTORY"], 3),
        (["mirror", "a", "b"], 2),
        (["release", "iceberg:TABLE", "--table", "t"], 2),
    ],
)
def test_usage_errors(arguments: list[str], code: int, tmp_path: Path) -> None:
    found = case("v2_cow")
    places = {"TABLE": str(found.metadata), "LAKE": str(tmp_path / "lake.ducklake"), "DIRECTORY": str(tmp_path)}
    named = []
    for each in arguments:
        for key, value in places.items():
            each = each.replace(key, value)
        named.append(each)
    maps = found.maps if "TABLE" in " ".join(arguments) and arguments[0] == "plan" else []
    ran = run_here(*named, *maps)
    assert ran.code == code, ran.out + ran.err
    assert "Traceback" not in ran.err and not (tmp_path / "lake.ducklake").exists()


def test_at_ends_the_history_and_a_later_run_goes_on(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    second = found.facts["snapshots"][1]["snapshot_id"]
    assert attempt(found, lake, at=str(second)).plan.tables[0].snapshots == 2
    assert attempt(found, lake).plan.tables[0].action.value == "append"


FAILING = """
import os, signal, sys, time
from bridge.cli import main as module
from bridge.errors import Unreachable

def work(**_: object) -> None:
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]) if sys.argv[1:] else 0)
        time.sleep(0.1)
    except KeyboardInterrupt as error:
        raise Unreachable("a task failed") from error
    raise Unreachable("a task failed")

module.cli.main = work
module.main()
"""


@pytest.mark.parametrize(("signals", "code"), [((), 6), (("SIGINT",), 130), (("SIGTERM",), 130)])
def test_an_error_that_an_interruption_made_is_one(signals: tuple[str, ...], code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", FAILING, *signals], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.startswith("error: " if code == 6 else "interrupted; ")
