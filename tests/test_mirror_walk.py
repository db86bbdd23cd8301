"""Random lives of lakes and of Iceberg tables, mirrored meanwhile by processes that are killed: each mirrored state
answers as its source did, to readers that never stop and to the judge."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import bridge
from tests.iceberg_parts import partial_readings
from tests.lake_versions import wrong_versions
from tests.server import Server
from tests.support import ROOT, lake_rows
from tests.test_postgres import running
from tests.walk_plan import Plan, plans, walked
from tests.walk_to_iceberg import ToIceberg
from tests.walk_to_lake import ToLake
from tests.walks import walk

__all__ = ["running"]  # a fixture


def lake_at(kind: str, folder: Path, server: Callable[[], Server]) -> str:
    """Where a lake of a kind is."""
    if kind == "postgres":
        made = server()
        return f"postgres:{made.connection(made.database())}"
    return f"sqlite:{folder}/lake.sqlite" if kind == "sqlite" else f"{folder}/lake.ducklake"


def catalog_at(kind: str, folder: Path, server: Callable[[], Server]) -> str:
    """The database of an Iceberg catalog of a kind; "" for a directory."""
    if kind == "postgres":
        made = server()
        return f"postgresql+psycopg://postgres@/{made.database()}?host={made.socket}"
    return f"sqlite:///{folder}/catalog.sqlite" if kind == "sqlite" else ""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Callable[[], Server]:
    """The tests' PostgreSQL, started for those that use it."""
    return lambda: request.getfixturevalue("running")


def walks(*kinds: tuple[str, str]) -> list[Any]:
    """Each pair of a source's and a target's catalog, short; and long where everything is run."""
    made = []
    for place, (source, target) in enumerate(kinds):
        marks = [pytest.mark.postgres] if "postgres" in (source, target) else []
        some = pytest.mark.exhaustive if place else pytest.mark.slow
        made.append(pytest.param(source, target, 12, marks=[*marks, some]))
        long = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]
        made.append(pytest.param(source, target, 300, marks=[*marks, *long]))
    return made


@pytest.mark.parametrize(
    ("source", "target", "steps"), walks(("postgres", "sqlite"), ("sqlite", "postgres"), ("sqlite", "duckdb"))
)
def test_an_iceberg_catalog_lives_and_the_lake_follows(
    source: str, target: str, steps: int, tmp_path: Path, server: Callable[[], Server]
) -> None:
    def lives(plan: Plan) -> None:
        lake, uri = lake_at(target, tmp_path, server), catalog_at(source, tmp_path, server)
        with closing(ToLake(tmp_path, plan.number, lake, uri)) as course:
            assert walk(course, tmp_path / "walk", plan, readers=2 if steps > 100 else 1) == []

    walked(plans(ToLake.KINDS, steps), lives, same=steps < 100)


@pytest.mark.parametrize(
    ("source", "target", "steps"), walks(("sqlite", "postgres"), ("postgres", "directory"), ("duckdb", "sqlite"))
)
def test_a_lake_lives_and_iceberg_tables_follow(
    source: str, target: str, steps: int, tmp_path: Path, server: Callable[[], Server]
) -> None:
    def lives(plan: Plan) -> None:
        lake, uri = lake_at(source, tmp_path, server), catalog_at(target, tmp_path, server)
        with closing(ToIceberg(tmp_path, plan.number, lake, uri)) as course:
            assert walk(course, tmp_path / "walk", plan, readers=2 if steps > 100 else 1) == []

    walked(plans(ToIceberg.KINDS, steps), lives, same=steps < 100)


MERGE = "MERGE INTO {t} t USING (SELECT CAST(id AS INT) AS id, 'm{n}' AS v FROM range({low}, {high})) s ON t.id = s.id "
STATEMENTS = (
    "INSERT INTO {t} (id, v) SELECT CAST(id AS INT), concat('i', id % 5) FROM range({low}, {high})",
    "INSERT INTO {t} (id, v) SELECT CAST(id AS INT), NULL FROM range({high}, {high} + 9)",
    MERGE + "WHEN MATCHED AND t.id % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
    "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)",
    "DELETE FROM {t} WHERE id >= {low} AND id % 4 = 1",
    "UPDATE {t} SET v = 'u{n}' WHERE id < {high} AND id % 5 = 2",
    "CALL ice.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))",
    "CALL ice.system.rewrite_position_delete_files(table => 'db.t', options => map('rewrite-all', 'true'))",
    "ALTER TABLE {t} CREATE OR REPLACE TAG back",
    "CALL ice.system.set_current_snapshot(table => 'db.t', ref => 'back')",
)


def spark_life(version: int, seed: int, count: int) -> list[str]:
    """Statements with deletes as merge-on-read; a tag is what there is to go back to."""
    dice, t = random.Random(seed), "ice.db.t"
    mor = ", ".join(f"'write.{each}.mode'='merge-on-read'" for each in ("delete", "update", "merge"))
    made = [
        f"CREATE TABLE {t} (id INT, v STRING) USING iceberg TBLPROPERTIES ('format-version'='{version}', {mor})",
        STATEMENTS[0].format(t=t, low=0, high=40, n=0),
        f"ALTER TABLE {t} CREATE TAG back",
    ]
    for number in range(1, count):
        low = dice.randrange(40)
        made.append(dice.choice(STATEMENTS).format(t=t, low=low, high=low + dice.randint(5, 30), n=number))
    name = f"ahead{seed}"
    made += [
        f"ALTER TABLE {t} CREATE BRANCH {name}",
        f"INSERT INTO {t}.branch_{name} (id, v) SELECT CAST(id AS INT), 'b' FROM range(500, 520)",
        f"DELETE FROM {t}.branch_{name} WHERE id < 9",
        f"CALL ice.system.fast_forward('db.t', 'main', '{name}')",
    ]
    return made


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "seed"),
    [(2, 1), *(pytest.param(3 - each % 2, each, marks=pytest.mark.exhaustive) for each in range(2, 9))],
)
def test_a_life_in_spark(version: int, seed: int, tmp_path: Path) -> None:
    """Each state that the table was in is mirrored, or passed over, in turn; snapshots are read by PyIceberg."""
    from pyiceberg.table import StaticTable

    warehouse, lake, dice = tmp_path / "wh", tmp_path / "lake.db", random.Random(seed)
    warehouse.mkdir()
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark_statements.py"), str(warehouse)],
        input=json.dumps(spark_life(version, seed, 16)),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(ran.stdout.splitlines()[-1])
    assert [each["error"] for each in said if isinstance(each, dict)] == []
    home = warehouse / "db" / "t" / "metadata"
    states = sorted(home.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
    options = bridge.Options(rename="main.t", verify="none", follow=True)
    asked, done = [], 0
    for path in states:
        if path != states[-1] and dice.random() > 0.5:
            continue
        bridge.migrate(f"iceberg:{path}", f"ducklake:{lake}", options)
        table = StaticTable.from_metadata(str(path))
        query = "SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes ORDER BY 1"
        noted = [
            (id_, each["commit"])
            for id_, text in lake_rows(lake, query)
            for each in json.loads(text or "{}").get("tables", [])
        ]
        for snapshot, commit in noted[done:]:
            rows = table.scan(snapshot_id=int(commit)) if commit else table.scan()
            asked.append((("main", "t"), snapshot, rows.to_arrow()))
        done = len(noted)
    assert done > 8
    assert wrong_versions(str(lake), asked, tmp_path / "asked") == []
    assert partial_readings(str(states[-1]), bridge.Options(check_files="none"))
    compactions = [
        id_
        for id_, text in lake_rows(lake, "SELECT snapshot_id, commit_message FROM ducklake_snapshot_changes")
        if str(text).startswith("replace of")
    ]
    assert compactions or seed > 2
