"""Rounds become metrics that Prometheus' own parser reads, and lines; neither shows a credential."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.cli.secrets import Hidden
from bridge.cli.told import lines
from bridge.errors import Conflict, Overtaken, Unreachable, UsageError
from bridge.mirroring.metrics import Metrics
from bridge.mirroring.pair import Pair, Round, State, TableOutcome
from bridge.model.table import TableName

PAIR = Pair("iceberg:/w", "ducklake:l", name="sales")
A, B = TableName(("db",), "a"), TableName(("db",), "b")
APPLIED = TableOutcome(A, A, State.APPLIED, "7", 1_000_000, 1, 2.5, commits=3, files=4, bytes=500)
CURRENT = replace(APPLIED, state=State.CURRENT, behind=0, behind_seconds=0.0, commits=0, files=0, bytes=0)
BLOCKED = TableOutcome(B, B, State.BLOCKED, behind=2, behind_seconds=9.0, message='it says "no"\nand more')


def sample(path: Path) -> Mapping[tuple[str, ...], float]:
    """Every sample by its short name and label values."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        assert family.documentation and family.type in ("gauge", "counter")
        for each in family.samples:
            assert (family.type == "counter") == each.name.endswith("_total")
            name = each.name.removeprefix("ducklake_bridge_mirror_")
            found[(name, *(each.labels[label] for label in sorted(each.labels)))] = each.value
    return found


def test_a_round_in_numbers(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    Metrics(str(path)).told(Round(PAIR, 1000.0, 2.0, (APPLIED, BLOCKED)))
    found = sample(path)
    assert found["lag_commits", "sales", "db.a"] == 1 and found["lag_seconds", "sales", "db.a"] == 2.5
    assert found["commits_applied_total", "sales", "db.a"] == 3
    assert found["files_registered_total", "sales", "db.a"] == 4 and found["bytes_total", "sales", "db.a"] == 500
    assert found["rounds_total", "blocked", "sales"] == 1
    assert found["round_seconds", "sales"] == 2 and found["last_round_timestamp_seconds", "sales"] == 1002
    assert found["last_success_timestamp_seconds", "sales", "db.a"] == 1002
    assert found["last_success_timestamp_seconds", "sales", "db.b"] == 0, "the alert that catches everything fires"
    states = {key[2:]: value for key, value in found.items() if key[0] == "table_state"}
    assert {key for key, value in states.items() if value} == {("applied", "db.a"), ("blocked", "db.b")}
    assert len(states) == 2 * len(State)


def test_counters_go_on_in_the_next_process_and_in_the_next_round(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    Metrics(str(path)).told(Round(PAIR, 1000.0, 2.0, (APPLIED, BLOCKED)))
    second = Metrics(str(path))
    second.told(Round(PAIR, 2000.0, 1.0, (APPLIED,)))
    second.told(Round(PAIR, 3000.0, 1.0, (CURRENT,)))
    found = sample(path)
    assert found["commits_applied_total", "sales", "db.a"] == 6 and found["rounds_total", "ok", "sales"] == 2
    assert found["rounds_total", "blocked", "sales"] == 1
    assert found["last_success_timestamp_seconds", "sales", "db.a"] == 3001
    assert found["lag_commits", "sales", "db.a"] == 0 and found["table_state", "sales", "current", "db.a"] == 1
    for name in ("lag_commits", "last_success_timestamp_seconds"):
        assert (name, "sales", "db.b") not in found, "a table that is gone is behind no more"
    assert list(tmp_path.iterdir()) == [path]


def test_a_round_that_saw_nothing_keeps_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    metrics = Metrics(str(path))
    metrics.told(Round(PAIR, 1000.0, 2.0, (APPLIED,)))
    metrics.told(Round(PAIR, 2000.0, 2.0, error=Unreachable("nobody answers")))
    found = sample(path)
    assert found["rounds_total", "unreachable", "sales"] == 1 and found["lag_commits", "sales", "db.a"] == 1
    assert found["last_success_timestamp_seconds", "sales", "db.a"] == 1002
    assert found["last_round_timestamp_seconds", "sales"] == 2002


def test_a_pair_that_never_succeeded_is_waited_for_from_the_first_round(tmp_path: Path) -> None:
    path, name = tmp_path / "m.prom", "last_success_timestamp_seconds"

    def waited() -> dict[str, float]:
        return {key[2]: value for key, value in sample(path).items() if key[:2] == (name, "sales")}

    for at, each, expected in (
        (1000.0, {"error": Unreachable("nobody answers")}, {"": 0}),
        (2000.0, {"tables": (BLOCKED,)}, {"db.b": 0}),
        (3000.0, {"error": Unreachable("nobody answers")}, {"db.b": 0}),
        (4000.0, {"tables": (APPLIED,), "aside": (BLOCKED,)}, {"db.a": 4001, "db.b": 0}),
        (5000.0, {}, {"": 5001}),
        (6000.0, {"error": Unreachable("nobody answers")}, {"": 5001}),
    ):
        Metrics(str(path)).told(Round(PAIR, at, 1.0, **each))
        assert waited() == expected


@pytest.mark.parametrize("content", [b"", b"not metrics {", b"\xff\xfe", b"other_metric 5\n"])
def test_a_file_of_somebody_else_is_written_anew(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    path.write_bytes(content)
    Metrics(str(path)).told(Round(PAIR, 1000.0, 2.0, (APPLIED,)))
    assert sample(path)["commits_applied_total", "sales", "db.a"] == 3


def test_odd_names_come_back_as_they_were(tmp_path: Path) -> None:
    path, odd = tmp_path / "m.prom", TableName((), 'a"\\\n{b}')
    for _ in range(2):
        Metrics(str(path)).told(Round(PAIR, 1.0, 1.0, (replace(APPLIED, source=odd),)))
    assert sample(path)["commits_applied_total", "sales", str(odd)] == 6


def test_the_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.prom"
    metrics = Metrics(str(path))
    metrics.told(Round(PAIR, 1000.0, 2.0, (APPLIED,)))
    before = path.read_bytes()

    def full(_: int) -> None:
        assert path.read_bytes() == before, "nothing is written in place"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unreachable, match="No space left"):
        metrics.told(Round(PAIR, 2000.0, 2.0, (APPLIED,)))
    assert path.read_bytes() == before


def test_where_it_cannot_be_written_is_said_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")  # as a device it would be read without an end, and then be a file
    for path in (tmp_path, tmp_path / "nothing" / "m.prom", tmp_path / "file" / "m.prom", tmp_path / "pipe"):
        with pytest.raises(UsageError, match="--metrics-file"):
            Metrics(str(path))


def test_without_its_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"ducklake-bridge\[mirror\]"):
        Metrics(str(tmp_path / "m.prom"))


def test_no_credential_is_in_labels_or_lines(tmp_path: Path) -> None:
    hidden = Hidden()
    source, target = "iceberg-catalog:c", "ducklake:postgres:host=h password='geheim 1' dbname=x"
    hidden.learn(target)
    hidden.add("geheim2")
    said = "geheim 1 refused, uri postgresql://u:geheim3@h/db, token geheim2, password=geheim4 x://u:geheim5@h"
    each = Round(Pair(source, target), 1.0, 1.0, (replace(BLOCKED, message=said),), Unreachable(said, hint=said))
    path = tmp_path / "m.prom"
    Metrics(str(path), hidden.blot).told(each)
    told = "\n".join([*lines(each, "text", hidden.blot), *lines(each, "json", hidden.blot)])
    assert "geheim" not in path.read_text() + told + repr(each.pair)
    assert "host=h dbname=x" in path.read_text() and "refused" in told


def test_what_another_process_was_at_is_no_trouble_of_a_mirror_that_looks_again() -> None:
    error = Overtaken("a changed in the lake since the plan was made", hint="run it again")
    error.table = "db.a"

    def said(error: Conflict, first: bool) -> list[str]:
        [text] = lines(Round(PAIR, 1000.0, 1.0, error=error), "json", str, None, first)
        return [json.loads(text).get(key) for key in ("level", "state", "exit_code", "target", "hint")]

    looks = "another process was at it; the next round looks again"
    for each, table in (
        (error, "db.a"),
        (Conflict("another writer was first", hint="run it again", retryable=True), None),
    ):
        assert said(each, True) == ["info", "meanwhile", 5, table, looks]
        assert said(each, False) == ["error", "meanwhile", 5, table, "another process was at it; run it again"]
    assert said(Conflict("read by other column names"), True) == ["error", "failed", 5, None, None]


def test_a_line_for_what_changed_or_is_in_trouble() -> None:
    each = Round(PAIR, 1000.0, 2.5, (APPLIED, BLOCKED, CURRENT))
    text = lines(each, "text", str)
    assert text == [
        "time=1970-01-01T00:16:42.500Z level=info pair=sales table=db.a state=applied commits=3 files=4 bytes=500 "
        "commit=7 behind=1 behind_seconds=2.5",
        "time=1970-01-01T00:16:42.500Z level=error pair=sales table=db.b state=blocked behind=2 behind_seconds=9.0 "
        'message="it says \\"no\\"\\nand more"',
    ]
    documents = [json.loads(line) for line in lines(each, "json", str)]
    assert documents[0]["bytes"] == 500 and documents[1]["message"] == BLOCKED.message
    assert lines(Round(PAIR, 1.0, 1.0, (CURRENT,)), "text", str) == []
    assert len(lines(Round(PAIR, 1.0, 1.0, (replace(CURRENT, behind=1),)), "text", str)) == 1
    [failed] = lines(Round(PAIR, 1.0, 1.0, error=Unreachable("no answer", hint="wait")), "text", str)
    assert failed.endswith('level=error pair=sales state=failed exit_code=6 message="no answer" hint=wait')


@pytest.mark.parametrize("text", ["", "a b", 'a"b', "a=b", "a\\b", "a\x1b[31m", "a\u2028b", "a\u202eb", "ä\nb"])
def test_a_value_of_a_line_ends_where_it_should(text: str) -> None:
    [line] = lines(Round(replace(PAIR, name=text or " "), 1.0, 1.0, (APPLIED,)), "text", str)
    value = line.partition("pair=")[2].partition(" table=")[0]
    assert json.loads(value) == (text or " ") and line.isprintable()
