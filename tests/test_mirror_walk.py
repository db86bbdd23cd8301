"""Random lives of an Iceberg table, mirrored after random steps: each snapshot answers as its commit did."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import bridge
from tests.iceberg_parts import partial_readings
from tests.lake_versions import wrong_versions
from tests.support import ROOT, lake_rows
from tests.test_mirror import Mirrored, command, killed, started


def walk(root: Path, backend: str, seed: int, steps: int, kills: float = 0.0, pairs: float = 0.0) -> None:
    """Steps of a source, caught up with now and then; sometimes the round is killed first, or two are made at once."""
    mirrored = Mirrored(root, backend)
    life, dice = mirrored.add(seed=seed), random.Random(seed + 1)
    known: dict[str, list[str]] = {}
    for step in range(steps):
        life.step()
        if dice.random() > 0.4 and step < steps - 1:
            continue
        before = len(mirrored.noted())
        uuid = str(life.table.metadata.table_uuid)
        had = known.setdefault(uuid, [])
        if mirrored.lake.exists() and dice.random() < kills:
            killed(mirrored, dice.randint(0, 12))
        if mirrored.lake.exists() and dice.random() < pairs:
            for each in [started(*command(mirrored, "--once")) for _ in range(2)]:
                each.communicate(timeout=300)
        made = mirrored.round()
        assert made.error is None and made.exit_code == 0, (life.steps, made)
        new = [commit for _, commit, _ in mirrored.noted()[before:] if commit]
        del mirrored.expected[before:]  # also what another one wrote
        mirrored.remember(before)
        head = life.line[-1:]
        # nothing is written twice, nothing left out: what comes ends where the source is, in the source's own order
        place = [life.line.index(each) for each in new if each in life.line]
        assert len(place) == len(new) and place == list(range(place[0], place[0] + len(place)) if place else []), (
            life.steps
        )
        assert not head or (had + new)[-1:] == head, life.steps
        had += new
        assert mirrored.bookmark() == (head[0] if head else ""), life.steps
    assert mirrored.wrong() == [], (seed, life.steps)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "seed"), [("", 5), ("sqlite:", 6)], ids=["duckdb", "sqlite"])
def test_a_short_life(backend: str, seed: int, tmp_path: Path) -> None:
    walk(tmp_path, backend, seed, steps=18)


@pytest.mark.exhaustive
@settings(max_examples=3, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**31), backend=st.sampled_from(["", "sqlite:"]))
def test_a_long_life(seed: int, backend: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    walk(tmp_path_factory.mktemp("life"), backend, seed, steps=300, kills=0.1, pairs=0.05)


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
    [(2, 1), (3, 2), *(pytest.param(each % 2 + 2, each, marks=pytest.mark.exhaustive) for each in range(3, 9))],
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
