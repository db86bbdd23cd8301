"""An Iceberg table is followed by what changed: read in part, with what the target knows, as with everything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.model.paths import PathMap
from bridge.ports import Silent
from converters.iceberg import files as iceberg_files
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


def made(monkeypatch: pytest.MonkeyPatch, place: Path, files: int, per: int, real: Sequence[int]) -> Any:
    """A table as the benchmarks make them, each file of a day of its own, of which only some are there."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import bench_metadata
    from iceberg_commits import Growing

    shape = bench_metadata.Shape(files, per)
    bench_metadata.generate(place, shape, real)
    return Growing(place / shape.name)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_small_deletes_open_nothing_that_they_do_not_concern(
    version: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever opens one of the files that are not there fails."""
    growing = made(monkeypatch, tmp_path, 40, 10, (5, 17))
    lake = tmp_path / "lake.db"

    def read(**more: Any) -> list[str]:
        """The manifests and position delete files that a round opens."""
        growing.save()
        pair = Pair(f"iceberg:{growing.home}", f"ducklake:{lake}", bridge.Options(verify="metadata", **more))
        with opened() as seen:
            told = catch_up(pair, Silent())
        assert told.exit_code == 0, (told.error, told.tables)
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


def test_of_a_partition_that_many_manifests_span_those_are_read_that_list_a_file_with_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    growing = made(monkeypatch, tmp_path, 400, 100, (5, 370))
    spans = [growing.manifests[-1][0], growing.manifests[-4][0]]  # the last one goes on with the first days
    growing.equality(5, [4])
    growing.save()
    read, entries = list[str](), iceberg_files.entries

    def noted(manifests: Any, path_map: PathMap) -> Any:
        read.extend(manifests["path"])
        return entries(manifests, path_map)

    monkeypatch.setattr(iceberg_files, "entries", noted)
    [part] = partial_readings(str(growing.home), bridge.Options(check_files="none"), 2)[:1]
    assert part.partial and set(spans) <= set(read[:5])
    assert read[5:7] == [growing.manifests[0][0], spans[0]], "after everything"


@pytest.mark.parametrize(
    ("version", "partitioned"),
    [(2, False), (3, True), *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in ((2, True), (3, False)))],
)
@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in range(2, 20))])
def test_deletes_that_come_and_go_are_read_as_with_everything(
    seed: int, version: int, partitioned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Deletes of every kind, also taken back; files that leave, and come under the sequence number of before."""
    growing, dice = made(monkeypatch, tmp_path, 2, 1, (0, 1)), random.Random(seed)
    files, vectors = {0: "", 1: ""}, dict[int, tuple[str, set[int]]]()
    if not partitioned:
        growing.metadata["partition-specs"][0]["fields"] = []
    # what is there begins anew, so that any of it can leave
    for manifest, _ in growing.manifests:
        growing.withdraw(manifest)
    if version == 3:
        growing.upgrade()
    for number in (0, 1, 365):  # the first and the last are of one day
        growing.append(number)
        files[number] = growing.manifests[0][0]
    found, undone = list[Part](), list[str]()
    for step in range(24):
        number, rows = dice.choice(sorted(files)), {dice.randrange(12) for _ in range(3)}
        deletes = [path for path, content in growing.manifests if content]
        kinds = ["append", "leave", "back", "positions", "scoped", "vector", "vector", "equality", "undo", "redo"]
        match dice.choice(kinds):
            case "append":
                number = max(files) + 365
                growing.append(number)
                files[number] = growing.manifests[0][0]
            case "leave" if len(files) > 2:
                growing.withdraw(files.pop(number))
                vectors.pop(number, None)
            case "back":
                number = next(each for each in range(0, 9_000, 365) if each not in files)
                growing.append(number, dice.randint(1, growing.sequence))
                files[number] = growing.manifests[0][0]
            case "positions" | "scoped" as what if version == 2:
                growing.positions(number, sorted(rows), what == "scoped")
            case "vector" if version == 3:
                path, before = vectors.get(number, ("", set()))
                rows |= before if dice.random() < 0.8 else set()
                vectors[number] = growing.vector(number, sorted(rows), path), rows
            case "equality":
                growing.equality(number, sorted(rows))
            case "redo" if undone:
                growing.restore(undone.pop())
            case "undo" if deletes:
                growing.withdraw(path := dice.choice(deletes))
                undone += [path] * (path not in {each for each, _ in vectors.values()})
                vectors = {each: value for each, value in vectors.items() if value[0] != path}
        if step % 3 == 2:
            growing.save()
            found += partial_readings(str(growing.home), bridge.Options(check_files="none"), 4)
    assert sum(each.partial for each in found) > len(found) / 3


@pytest.mark.parametrize("kind", ["positions", "scoped", "equality"])
def test_old_deletes_apply_to_a_file_that_comes_back_as_old_as_it_was(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    growing = made(monkeypatch, tmp_path, 2, 1, (0, 1))
    growing.append(365)
    manifest, age = growing.manifests[0][0], growing.sequence
    if kind == "equality":
        growing.equality(365, [3])
    else:
        growing.positions(365, [3], kind == "scoped")
    growing.withdraw(manifest)
    growing.append(730)
    growing.append(365, age)
    growing.save()
    found = partial_readings(str(growing.home), bridge.Options(check_files="none"))
    assert found[-2].partial == (kind != "equality"), "before it came back"


@pytest.mark.slow
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
