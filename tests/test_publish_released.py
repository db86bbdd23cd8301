"""Published tables that are given back, taken over, and told of when their source is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge.errors import Blocked, Conflict, UsageError
from tests.support import run_here, tree_hash
from tests.test_catalogs import Rest, nothing_configured, serving
from tests.test_publish import CHANGES, Lake, appended, current
from tests.test_publish_catalogs import place, rest_options, sql_options

assert nothing_configured  # no test here may see what the machine has configured


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.do(*CHANGES[:4])
    return made


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[Rest]:
    with serving(tmp_path) as server:
        server.set(writable=3)
        yield server


@pytest.mark.slow
def test_release_removes_a_published_table_and_no_data_file(lake: Lake) -> None:
    target = f"iceberg:{lake.warehouse}"
    assert lake.publish(verify="none").exit_code == 0
    before, table = tree_hash(lake.files), lake.warehouse / "main/t"
    data = tree_hash(table / "data")
    foreign = table / "metadata" / "somebody-s.avro"
    foreign.write_bytes(b"x")
    ran = run_here("release", target, "--table", "t")
    assert ran.code == 0 and "files forgotten, none touched" in ran.out and str(table) in ran.out, ran.err
    assert [each.name for each in (table / "metadata").iterdir()] == [foreign.name]
    assert tree_hash(lake.files) == before and tree_hash(table / "data") == data
    with pytest.raises(UsageError, match=r"main\.t is no table"):
        bridge.release(target, ["main.t"])
    again = lake.publish()
    assert again.exit_code == 0 and again.plan.tables[0].action.value == "create"


@pytest.mark.slow
def test_what_somebody_else_wrote_is_not_released_unless_told(lake: Lake) -> None:
    target = f"iceberg:{lake.warehouse}"
    lake.publish(verify="none")
    snapshot = appended(lake.warehouse / "main/t")
    before = tree_hash(lake.warehouse)
    with pytest.raises(Blocked, match=str(snapshot)):
        bridge.release(target, ["t"])
    with pytest.raises(Conflict, match=str(snapshot)):
        bridge.adopt(target, ["t"])
    assert tree_hash(lake.warehouse) == before
    assert len(bridge.release(target, ["t"], discard=True)) == 1


@pytest.mark.slow
def test_a_branch_of_somebody_else_is_not_released_unless_told(lake: Lake) -> None:
    lake.publish(verify="none")
    path, metadata = current(lake.warehouse / "main/t")
    metadata["refs"]["theirs"] = {"snapshot-id": metadata["snapshots"][0]["snapshot-id"], "type": "branch"}
    path.write_text(json.dumps(metadata))
    with pytest.raises(Blocked, match="reference theirs"):
        bridge.release(f"iceberg:{lake.warehouse}", ["t"])


@pytest.mark.slow
def test_a_commit_while_a_table_is_released_is_a_conflict(lake: Lake) -> None:
    from converters.iceberg.warehouse import Warehouse

    lake.publish(verify="none")
    home = Warehouse(str(lake.warehouse))
    found = home.find(home.names(("main",))[0])
    assert found is not None
    appended(lake.warehouse / "main/t")
    before = tree_hash(lake.warehouse)
    with pytest.raises(Conflict, match="meanwhile"):
        home.forget(*found)
    assert tree_hash(lake.warehouse) == before


@pytest.mark.slow
def test_a_release_that_was_killed_is_run_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each file that it removes; as long as there is metadata the table is whole, and nothing is left then."""
    from converters import storage

    target, removed, remove = f"iceberg:{lake.warehouse}", 0, storage.remove
    lake.publish(verify="none")
    lake.do(CHANGES[4])
    lake.publish(verify="none")
    whole = lake.file.parent / "whole"
    shutil.copytree(lake.warehouse, whole)
    manifests = {each.name for each in (whole / "main/t/metadata").glob("*.avro")}
    for last in range(100):
        shutil.rmtree(lake.warehouse)
        shutil.copytree(whole, lake.warehouse)
        removed = 0

        def stopping(uri: str, last: int = last) -> None:
            nonlocal removed
            if removed == last:
                raise KeyboardInterrupt
            removed += 1
            remove(uri)

        with monkeypatch.context() as patched:
            patched.setattr(storage, "remove", stopping)
            try:
                bridge.release(target, ["t"])
            except KeyboardInterrupt:
                pass
            else:
                break
        if list((lake.warehouse / "main/t/metadata").glob("*.metadata.json")):
            assert {each.name for each in (lake.warehouse / "main/t/metadata").glob("*.avro")} == manifests
            assert len(bridge.release(target, ["t"])) == 1
        assert not list((lake.warehouse / "main/t/metadata").glob("*.metadata.json"))
    assert last > 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directory", pytest.param("sql", marks=pytest.mark.exhaustive), "rest"])
def test_adopted_tables_stay_adopted_and_are_released(kind: str, lake: Lake, rest: Rest) -> None:
    given: dict[str, Any] = {
        "directory": (),
        "sql": sql_options(lake),
        "rest": rest_options(lake, rest),
    }
    target = f"iceberg:{lake.warehouse}" if kind == "directory" else "iceberg-catalog:prod"
    options = bridge.Options(target_options=given[kind], verify="none")

    def metadata() -> dict[str, Any]:
        if kind == "directory":
            return current(lake.warehouse / "main/t")[1]
        path = place(lake) if kind == "sql" else json.loads(rest.state.read_text())["tables"][0]["metadata"]
        found: dict[str, Any] = json.loads(Path(path).read_text())
        return found

    bridge.migrate(f"ducklake:{lake.file}", target, options)
    assert metadata()["properties"]["gc.enabled"] == "false"
    before = metadata()["snapshots"]
    [adopted] = bridge.adopt(target, ["main.t"], options)
    assert "expire_snapshots" in adopted.meaning
    assert "gc.enabled" not in metadata()["properties"] and metadata()["snapshots"] == before
    lake.do(CHANGES[4], CHANGES[5])
    report = bridge.migrate(f"ducklake:{lake.file}", target, options)
    assert report.exit_code == 0 and report.plan.tables[0].action.value == "append"
    assert "gc.enabled" not in metadata()["properties"]
    files = tree_hash(lake.files)
    [released] = bridge.release(target, ["main.t"], options=options)
    assert str(released.name) == "main.t" and released.files == 3 and tree_hash(lake.files) == files
    assert bridge.plan(f"ducklake:{lake.file}", target, options).tables[0].action.value == "create"


@pytest.mark.slow
def test_a_lake_whose_last_table_was_dropped_tells_what_stays(lake: Lake) -> None:
    lake.publish(verify="none")
    lake.do("DROP TABLE t")
    before = tree_hash(lake.warehouse)
    ran = run_here("migrate", f"ducklake:{lake.file}", f"iceberg:{lake.warehouse}")
    assert ran.code == 0 and "published-stays" in ran.out and "main.t" in ran.out, ran.err
    assert tree_hash(lake.warehouse) == before
    with pytest.raises(UsageError, match="matches no table"):
        lake.publish(tables=("main.other",))
    with pytest.raises(UsageError, match="no table is selected"):
        bridge.migrate(f"ducklake:{lake.file}", f"iceberg:{lake.file.parent}/elsewhere")
