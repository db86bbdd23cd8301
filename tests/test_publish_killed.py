"""Publishing that is killed or interrupted at every step, and two that publish at once: the table is one or the other,
and the next run ends where an undisturbed one ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.errors import Conflict, Unreachable
from bridge.model.table import TableName
from converters import storage
from converters.iceberg import writer
from converters.iceberg.warehouse import Held, Warehouse
from converters.iceberg.writer import IcebergTarget
from tests.iceberg_judge import judge_iceberg
from tests.refusals import in_the_way
from tests.test_publish import Lake, numbers

STEPS = ("replace", "link", "remove", "makedirs", "rmdir", "fsync")


class KilledError(BaseException):
    """The process is gone: nothing that it would still do is done."""


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch, last: int, gone: bool) -> Iterator[list[str]]:
    """Before the change to the disk of that number, what was written aside is there. Of a process that is gone nothing
    happens any more; one that is interrupted cleans up."""
    done: list[str] = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **more: Any) -> Any:
            done.append(real.__name__)
            if len(done) == last or (gone and len(done) > last):
                raise KilledError
            return real(*given, **more)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(
            storage, "os", SimpleNamespace(**{**vars(os), **{each: counted(getattr(os, each)) for each in STEPS}})
        )
        patched.setattr(storage, "remove", counted(storage.remove))
        yield done


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.do("CREATE TABLE t(id INTEGER)", *(f"INSERT INTO t FROM range({each}, {each + 20})" for each in (0, 20, 40)))
    assert made.publish(verify="none").exit_code == 0
    made.do("CALL ducklake_merge_adjacent_files('lake')", "DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (99)")
    return made


def whole(table: Path) -> list[tuple[int, int, int]] | None:
    """The snapshots of the newest version, after every file that it names was found."""
    from converters.iceberg import locate
    from converters.iceberg.avro import read_records
    from converters.iceberg.publish.held import every_path
    from converters.iceberg.warehouse import load

    if not locate.is_table(str(table)):
        return None
    metadata = dict(load(locate.find_metadata(str(table))[0]))
    paths = set(every_path(metadata))
    for each in metadata["snapshots"]:
        listed = read_records(storage.read(each["manifest-list"], "list"))
        assert [len(storage.read(one["manifest_path"], "m")) for one in listed] == [
            one["manifest_length"] for one in listed
        ]
    assert all(Path(each).is_file() for each in paths)
    return numbers(metadata)


def hinted(table: Path) -> int:
    """The version that readers see who go by the hint alone."""
    return int((table / "metadata" / "version-hint.text").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "gone"),
    [("new", True), pytest.param("published", True, marks=pytest.mark.exhaustive), ("published", False)],
)
def test_a_run_that_is_stopped_at_any_step_is_run_again(
    table: str, gone: bool, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, start, before = lake.warehouse / "main/t", tmp_path / "start", None
    if table == "new":
        shutil.rmtree(lake.warehouse)
        start.mkdir()
    else:
        shutil.copytree(lake.warehouse, start)
        before = whole(place)
    with stopped(monkeypatch, -1, False) as steps:
        lake.publish(verify="none")
    wanted, seen = whole(place), set()
    commit = steps.index("link")
    # one write of a manifest is as another
    for last in (1, commit // 2, *range(commit - 1, len(steps) + 1)):
        shutil.rmtree(lake.warehouse)
        shutil.copytree(start, lake.warehouse)
        with stopped(monkeypatch, last, gone), pytest.raises(KilledError):
            lake.publish(verify="none")
        assert whole(place) in (before, wanted), last
        again = lake.publish(verify="none")
        assert hinted(place) == (1 if table == "new" else 2), last
        seen.add(again.plan.tables[0].action.value)
        assert again.exit_code == 0 and whole(place) == wanted, last
    assert seen == {"create" if table == "new" else "append", "nothing"}
    assert judge_iceberg([lake.expected()], ["pyiceberg"], tmp_path / "judge") == []


@pytest.mark.slow
def test_of_two_that_publish_at_once_the_second_says_so_and_leaves_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run commits between this one's last file and its commit."""
    commit, place = Warehouse.commit, lake.warehouse / "main/t"
    after: list[dict[str, bytes]] = []

    def files() -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in lake.warehouse.rglob("*") if each.is_file()}

    def late(self: Warehouse, name: TableName, held: Held | None, metadata: Mapping[str, Any], mark: str) -> str:
        if not after:
            after.append({})
            assert lake.publish(verify="none").exit_code == 0
            after[0] |= {each: content for each, content in files().items() if mark not in each}
        return commit(self, name, held, metadata, mark)

    monkeypatch.setattr(Warehouse, "commit", late)
    with pytest.raises(Conflict, match="version 2 meanwhile: snapshot 7"):
        lake.publish(verify="none")
    assert [files()] == after and len(whole(place) or ()) == 7
    assert lake.publish(verify="none").plan.tables[0].action.value == "nothing"


@pytest.fixture
def inlined(tmp_path: Path) -> Lake:
    """Rows of the catalog, which are published in files of our own."""
    made = Lake(tmp_path)
    made.inlined = 10
    made.do("CREATE TABLE t(id INTEGER)", "INSERT INTO t VALUES (1)")
    return made


def killed_after_its_commit(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of its work stays."""

    def finish(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTarget, "finish", finish)
        with pytest.raises(KilledError):
            lake.publish(verify="none")
    assert list((lake.warehouse / ".bridge-staging").rglob("work.json"))


@pytest.mark.slow
def test_what_was_published_stays_where_the_table_cannot_be_seen(
    inlined: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = inlined.warehouse / "main/t"
    killed_after_its_commit(inlined, monkeypatch)
    inlined.do("INSERT INTO t VALUES (2)")
    with in_the_way(place / "metadata"), pytest.raises(Unreachable, match="is a file"):
        inlined.publish(verify="none")
    assert whole(place)
    assert inlined.publish(verify="none").exit_code == 0 and whole(place)


@pytest.mark.slow
def test_what_another_run_published_before_it_was_killed_stays(inlined: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so while this one is about to remove what is left of others."""
    place = inlined.warehouse / "main/t"
    assert inlined.publish(verify="none").exit_code == 0
    inlined.do("INSERT INTO t VALUES (2)")
    real = writer.sweep

    def late(*given: Any, **more: Any) -> None:
        monkeypatch.setattr(writer, "sweep", real)
        inlined.do("INSERT INTO t VALUES (3)")
        killed_after_its_commit(inlined, monkeypatch)
        real(*given, **more)

    monkeypatch.setattr(writer, "sweep", late)
    with pytest.raises(Conflict, match="meanwhile"):
        inlined.publish(verify="none")
    assert whole(place)
    assert inlined.publish(verify="none").plan.tables[0].action.value == "nothing" and whole(place)


@pytest.mark.slow
def test_the_hint_of_a_run_that_is_late_does_not_lead_back(inlined: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one commits between its version and its hint."""
    place, real = inlined.warehouse / "main/t", Warehouse._hint

    def late(self: Warehouse, *given: Any) -> None:
        monkeypatch.setattr(Warehouse, "_hint", real)
        inlined.do("INSERT INTO t VALUES (2)")
        assert inlined.publish(verify="none").exit_code == 0
        real(self, *given)

    monkeypatch.setattr(Warehouse, "_hint", late)
    inlined.publish(verify="none")
    assert hinted(place) == 2
