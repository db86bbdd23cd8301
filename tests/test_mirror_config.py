"""mirror.yaml: what it says reaches the pairs as the command line would make them, and every fault is told by place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bridge.cli.mirroring import mirror
from bridge.cli.secrets import expanded, holds_secret
from bridge.errors import Conflict, Unreachable
from bridge.mirroring.pair import Pair, Round, State, TableOutcome
from bridge.model.secrets import names_secret, split
from bridge.model.table import TableName
from tests.support import ROOT, Ran, run_here

TWO = "  - {source: 'iceberg:/w', target: 'ducklake:l'}\n"


class Loop:
    """Stands where the loop is called: what it was given, and what it tells."""

    def __init__(self) -> None:
        self.pairs: tuple[Pair, ...] = ()
        self.given: dict[str, Any] = {}
        self.rounds: tuple[Round, ...] = ()
        self.meanwhile: Callable[[threading.Event], int] = lambda _: 0

    def mirror(self, pairs: tuple[Pair, ...], **given: Any) -> int:
        self.pairs, self.given = pairs, given
        for each in self.rounds:
            given["told"](each)
        return self.meanwhile(given["stop"])


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    module, made = ModuleType("bridge.mirroring.loop"), Loop()
    module.mirror = made.mirror  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bridge.mirroring.loop", module)
    yield made


@pytest.fixture
def configured(tmp_path: Path, loop: Loop) -> Callable[..., Ran]:
    def written(text: str, *more: str) -> Ran:
        (tmp_path / "m.yaml").write_text(text)
        return run_here("mirror", "--config", tmp_path / "m.yaml", *more)

    return written


def faults(ran: Ran) -> dict[str, str]:
    """Faults by `line:column`."""
    assert ran.code == 2 and ran.out == "", ran.err
    found = {}
    for line in ran.err.splitlines():
        _, name, rest = line.partition("m.yaml:")
        if name and line.partition(" faults in ")[1] == "":
            place, _, said = rest.partition(": ")
            found[place] = said
    return found


def test_a_pair_is_what_the_command_line_makes_of_the_same_options(loop: Loop, configured: Callable[..., Ran]) -> None:
    text = """
pairs:
  - source: iceberg-catalog:prod
    source-options: {uri: http://h, warehouse: w}
    target: ducklake:l
    tables: [a.*, 010]
    exclude: a.x
    as: '{namespace}.{table}'
    interval: 1h30m
    on-drop: drop
    options:
      history: current
      accept: [sort-order]
      type-map: {timestamptz_ns: timestamptz}
      map-prefix: [/old=/new]
      readers: spark,duckdb
      format-version: 3
      strict: yes
      inline-deletes: 5
      spark-conf: {spark.x: 1}
      partition-by: {events: day(ts), other: a}
      verify: rows
"""
    typed = (
        "--source-option", "uri=http://h", "--source-option", "warehouse=w", "--table", "a.*", "--table", "010",
        "--exclude", "a.x", "--as", "{namespace}.{table}", "--interval", "90m", "--on-drop", "drop", "--history",
        "current", "--accept", "sort-order", "--type-map", "timestamptz_ns=timestamptz", "--map-prefix", "/old=/new",
        "--readers", "spark,duckdb", "--format-version", "3", "--strict", "--inline-deletes", "5", "--spark-conf",
        "spark.x=1", "--partition-by", "events=day(ts)", "--partition-by", "other=a", "--verify", "rows",
    )  # fmt: skip
    assert run_here("mirror", "iceberg-catalog:prod", "ducklake:l", *typed).code == 0
    expected = loop.pairs
    assert configured(text).code == 0
    assert loop.pairs == expected and expected[0].interval == 5400 and expected[0].options.strict


def test_every_option_of_the_command_line_can_stand_in_the_file(configured: Callable[..., Ran]) -> None:
    named = {each.opts[0].removeprefix("--") for each in mirror.params if each.opts[0].startswith("--")}
    named -= {"config", "once", "jobs", "metrics-file", "log-format", "interval", "on-drop"}
    named -= {"table", "exclude", "as", "source-option", "target-option"}
    [said] = faults(
        configured("pairs:\n  - source: iceberg:/w\n    target: ducklake:l\n    options: {zzzzz: 1}\n")
    ).values()
    assert set(said.partition("known here: ")[2].rstrip(")").split(", ")) == named


def test_defaults_hold_where_a_pair_says_nothing(loop: Loop, configured: Callable[..., Ran]) -> None:
    text = """
jobs: 7
log-format: json
defaults:
  interval: 2m
  source-options: {region: r, uri: u1}
  options: {history: current, strict: yes}
pairs:
  - {name: a, source: 'iceberg-catalog:c', target: 'ducklake:l', options: {strict: no}, source-options: {uri: u2}}
  - {name: b, source: 'iceberg-catalog:c', target: 'ducklake:l', interval: 5s, on-drop: drop}
"""
    assert configured(text, "--once").code == 0
    a, b = loop.pairs
    assert (a.interval, a.on_drop, a.options.history, a.options.strict) == (120, "keep", "current", False)
    assert a.options.source_options == (("region", "r"), ("uri", "u2"))
    assert (b.interval, b.on_drop, b.options.strict) == (5, "drop", True)
    assert loop.given["jobs"] == 7 and loop.given["once"] is True
    assert configured(text, "--jobs", "2").code == 0 and loop.given["jobs"] == 2


def test_the_environment_lies_below_the_file(
    loop: Loop, configured: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUCKLAKE_BRIDGE_HISTORY", "current")
    monkeypatch.setenv("DUCKLAKE_BRIDGE_MIRROR_INTERVAL", "7s")
    monkeypatch.setenv("DUCKLAKE_BRIDGE_JOBS", "9")
    assert configured(f"jobs: 3\npairs:\n{TWO}").code == 0
    assert (loop.pairs[0].interval, loop.pairs[0].options.history, loop.given["jobs"]) == (7, "current", 3)
    ran = configured(f"pairs:\n{TWO}", "--history", "full")
    assert ran.code == 2 and "--history beside --config" in ran.err


def test_all_faults_are_told_at_once_each_at_its_place(configured: Callable[..., Ran]) -> None:
    text = """jobz: 4
jobs: zero
defaults: {interval: 30, options: {histori: full, history: some}, source-options: {uri: u}}
pairs:
  - name: a
    name: b
    sorce: x
    source: ice:x
    interval: 1:30
    on-drop: maybe
    tables: {a: b}
    options:
      accept: [file-missing, sort-order, foo]
      type-map: {a: b}
      map-prefix: x
      readers: spark,foo
      strict: perhaps
      table: x
      memory-limit: lots
  - 5
  - {source: iceberg:/w, target: "ducklake:l", as: ~, exclude: !!binary x}
  - {source: "ducklake:l", source-options: {region: r}, target-options: {uri: u}, target: "iceberg:w"}
"""
    found = faults(configured(text))
    expected = {
        "1:1": "unknown key 'jobz' (did you mean jobs?)",
        "2:7": "jobs: 'zero' is not a valid integer",
        "3:22": "interval: '30' is not an interval (write 30s",
        "3:36": "unknown key 'histori' (did you mean history?)",
        "3:60": "history: 'some' is not one of 'full', 'current'",
        "5:5": "target: it is missing",
        "6:5": "'name' stands twice in one place (first on line 5)",
        "7:5": "unknown key 'sorce' (did you mean source?)",
        "8:13": "source: 'ice:x' is not a locator (write iceberg:PATH",
        "9:15": "interval: '1:30' is not an interval",
        "10:14": "on-drop: 'maybe' is not one of 'keep', 'drop'",
        "11:13": "tables: a mapping stands here",
        "13:16": "accept: --accept file-missing: this would change answers",
        "13:42": "accept: --accept foo: there is no such code",
        "14:21": "type-map: --type-map 'a=b' is not a known choice (known:",
        "15:19": "map-prefix: --map-prefix 'x' is not OLD=NEW",
        "16:16": "readers: --readers foo: unknown (known: spark",
        "17:15": "strict: 'perhaps' is not a valid boolean",
        "18:7": "table: this is no key of options (write tables: beside it)",
        "19:21": "memory-limit: --memory-limit 'lots' is not a size (write 500MB",
        "20:5": "a mapping is wanted here",
        "21:52": "a value is missing here",
        "21:64": "the tag 'binary' has no meaning here",
        "22:73": "target-options: --target-option is for iceberg-catalog:NAME (leave it out)",
        "22:44": "source-options: --source-option is for iceberg-catalog:NAME and duckdb:FILE (leave it out)",
    }
    assert set(found) == set(expected)
    assert {place for place, said in expected.items() if not found[place].startswith(said)} == set()


@pytest.mark.parametrize(
    ("content", "place", "said"),
    [
        (b"a: [1\nb: 2", "2:2", "this is not YAML"),
        (b"pairs: &x [*x]", "1:12", "*x: nothing is repeated by reference"),
        (b"a: &a [b]\nc: [*a, *a]", "2:5", "nothing is repeated"),
        (b"[" * 100_000, "1:21", "nested more than 20 levels"),
        (b"", "1:1", "a mapping with the key pairs is wanted"),
        (b"- a", "1:1", "a mapping with the key pairs is wanted"),
        (b"a: b\nc: \x01", "2:4", "a control character"),
        (b"a: b\nc: \xff", "2:4", "this is not UTF-8"),
        (b"pairs: []", "1:8", "a list of pairs is wanted"),
        (b"jobs: 4", "1:1", "a list of pairs is wanted"),
        (b"a: b\n---\nc: d", "2:1", "but found another document"),
        (b"? [a]\n: b", "1:3", "a key is a word"),
        (b"<<: {a: b}", "1:1", "unknown key '<<'"),
        (b"a: !!python/object/apply:os.system [x]", "1:4", "has no meaning here"),
    ],
)
def test_documents_that_are_none(content: bytes, place: str, said: str, loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(content)
    found = faults(run_here("mirror", "--config", tmp_path / "m.yaml"))
    assert said in found[place]


def test_files_that_are_none(tmp_path: Path) -> None:
    assert run_here("mirror", "--config", tmp_path / "nothing").code == 2
    assert run_here("mirror", "--config", tmp_path).code == 2
    (tmp_path / "large.yaml").write_bytes(b"#" * (1 << 21))
    assert run_here("mirror", "--config", tmp_path / "large.yaml").code == 2


def test_a_credential_in_the_file_is_refused_and_not_repeated(configured: Callable[..., Ran]) -> None:
    text = """pairs:
  - source: iceberg-catalog:c
    source-options: {token: geheim, s3.secret-access-key: geheim, uri: 'postgresql://u:geheim@h/db', key_env: NAME}
    target: ducklake:postgres:dbname=x password=geheim
    target-options: {adls.connection-string: 'x;AccountKey=geheim'}
    options: {spark-conf: [spark.hadoop.fs.s3a.secret.key=geheim], spark-remote: 'sc://h/;token=geheim'}
  - {source: 'iceberg:/w', target: 'ducklake:postgres:postgresql://u:geheim@h/db'}
  - {source: 'iceberg:/w', target: 'ducklake:postgres:dbname=x password=${P}geheim'}
  - {source: 'iceberg:s3://u:geheim@b/w', target: 'ducklake:l'}
  - {source: 'iceberg:/w', target: 'ducklake:mysql:db=x password=geheim'}
  - {source: 'iceberg:/w', target: 'ducklake:l', name: 'n', jobs: 'geheim'}
"""
    ran = configured(text)
    found = faults(ran)
    assert "geheim" not in ran.err
    credentials = {place for place, said in found.items() if "a credential stands here (write {env: NAME}" in said}
    passwords = {place for place, said in found.items() if "a password stands here (write ${NAME}" in said}
    assert [each.partition(":")[0] for each in sorted(credentials)] == ["3", "3", "3", "5", "6", "6"]
    assert {each.partition(":")[0] for each in passwords} == {"4", "7", "8", "9", "10"}


def test_settings_of_the_defaults_are_for_the_pairs_that_take_them(loop: Loop, configured: Callable[..., Ran]) -> None:
    text = """defaults: {source-options: {uri: u}, target-options: {uri: v}}
pairs:
  - {source: 'iceberg-catalog:c', target: 'ducklake:l'}
  - {source: 'ducklake:m', target: 'iceberg-catalog:d'}
"""
    loop.rounds = ()
    assert configured(text).code == 0
    found = [(each.options.source_options, each.options.target_options) for each in loop.pairs]
    assert found == [((("uri", "u"),), ()), ((), (("uri", "v"),))]


def test_credentials_come_from_the_environment_and_from_files(
    loop: Loop, configured: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "geheim=1")
    monkeypatch.setenv("P", "it's \\ geheim host=evil")
    (tmp_path / "secret").write_text("geheim2\n")
    text = f"""pairs:
  - source: iceberg-catalog:c
    source-options: {{token: {{env: TOKEN}}, credential: {{file: {tmp_path}/secret}}}}
    target: ducklake:postgres:dbname=x password=${{P}} host=h
    options: {{spark-conf: {{spark.hadoop.fs.s3a.secret.key: {{env: TOKEN}}}}}}
"""
    monkeypatch.setenv("DUCKLAKE_BRIDGE_TARGET_OPTION", "x.token=geheim9")
    said = "token geheim=1 and geheim2, password it's \\ geheim host=evil geheim9, "
    said += "quoted it%27s%20%5C%20geheim%20host%3Devil"
    error = Unreachable(said, hint=said)
    outcome = TableOutcome(TableName((), "t"), TableName((), "t"), State.BLOCKED, message=said)
    loop.rounds = (Round(Pair("iceberg:a", "ducklake:b"), 1.0, 1.0, (outcome,), error),)
    metrics = tmp_path / "m.prom"
    ran = configured(text, "--metrics-file", str(metrics))
    assert ran.code == 0
    [pair] = loop.pairs
    assert pair.options.source_options == (("token", "geheim=1"), ("credential", "geheim2"))
    assert pair.options.spark_conf == ("spark.hadoop.fs.s3a.secret.key=geheim=1",)
    kept, secrets = split(pair.target.removeprefix("ducklake:postgres:"))
    assert kept == "dbname=x host=h" and secrets == (("password", "it's \\ geheim host=evil"),)
    assert "geheim" not in ran.out + ran.err + metrics.read_text() + pair.label and "evil" not in ran.err
    assert ran.err.count("***") >= 4

    def fails(_: threading.Event) -> int:
        raise Conflict(said, hint=said)

    loop.meanwhile = fails
    ran = configured(text)
    assert ran.code == 5 and "geheim" not in ran.err


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{env: NIX_DA}", "the environment variable NIX_DA is not set, or empty"),
        ("{env: 'a b'}", "not the name of an environment variable"),
        ("{file: /nothing/there}", "the file /nothing/there cannot be read: No such file"),
        ("{file: /}", "is not a file"),
        ("{file: EMPTY}", "is empty"),
        ("{env: A, file: B}", "no reference"),
        ("{vault: A}", "no reference"),
        ("{}", "no reference"),
        ("[a]", "a list stands here"),
    ],
)
def test_references_that_lead_nowhere(value: str, said: str, configured: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    value = value.replace("EMPTY", str(tmp_path / "empty"))
    text = f"pairs:\n  - source: iceberg-catalog:c\n    target: ducklake:l\n    source-options: {{token: {value}}}\n"
    [found] = faults(configured(text)).values()
    assert said in found


def test_what_a_variable_holds_is_not_shown_when_it_is_wrong(
    configured: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "geheim")
    text = """pairs:
  - {source: '${WRONG}', target: 'ducklake:l'}
  - {source: 'iceberg:/w', target: 'ducklake:l', options: {history: {env: WRONG}, accept: [{env: WRONG}]}}
  - {source: 'iceberg:/w', target: 'ducklake:${UNSET_HERE}'}
"""
    ran = configured(text)
    assert "geheim" not in ran.err
    said = list(faults(ran).values())
    assert len(said) == 4 and "'${WRONG}' with its variables is no locator" in said[0]
    assert said[1] == "history: what the reference gives is not taken" and "UNSET_HERE is not set" in said[3]


@pytest.mark.parametrize(
    ("locator", "expected"),
    [
        ("ducklake:${V}", "ducklake:a b@c"),
        ("ducklake:postgres:${V}", "ducklake:postgres:a b@c"),
        ("ducklake:postgres:host=h password=${V}", "ducklake:postgres:host=h password='a b@c'"),
        ("ducklake:postgres:password = ${V} host=h", "ducklake:postgres:password = 'a b@c' host=h"),
        ("ducklake:postgres:postgresql://u:${V}@h/db", "ducklake:postgres:postgresql://u:a%20b%40c@h/db"),
        ("ducklake:postgres:postgresql://h/db?password=${V}", "ducklake:postgres:postgresql://h/db?password=a%20b%40c"),
        ("iceberg:/w/$x/${V}", "iceberg:/w/$x/a b@c"),
    ],
)
def test_a_variable_is_written_as_its_place_wants_it(locator: str, expected: str) -> None:
    assert expanded(locator, {"V": "a b@c"}) == expected
    assert not holds_secret(locator)


def test_names_of_credentials() -> None:
    secret = "token credential password s3.secret-access-key s3.access-key-id adls.account-key s3.session-token apikey"
    plain = "uri warehouse key_env oauth2-server-uri token-refresh-enabled spark.sql.shuffle.partitions keyspace region"
    assert [each for each in secret.split() if not names_secret(each)] == []
    assert [each for each in plain.split() if names_secret(each)] == []


def test_the_example_of_the_readme_holds(
    loop: Loop, configured: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (ROOT / "README.md").read_text().partition("### mirror.yaml\n\n")[2].partition("\n\n")[0]
    (tmp_path / "s3").write_text("geheim")
    monkeypatch.setenv("CATALOG_TOKEN", "geheim")
    monkeypatch.setenv("LAKE_PASSWORD", "geheim")
    text = "\n".join(line[4:] for line in section.splitlines())
    text = text.replace("/run/secrets", str(tmp_path)).replace("/var/lib/node_exporter", str(tmp_path))
    assert configured(text).code == 0
    assert [each.interval for each in loop.pairs] == [30, 60] and loop.pairs[0].name == "sales"


def test_two_pairs_of_one_name(configured: Callable[..., Ran]) -> None:
    assert "stands twice" in faults(configured(f"pairs:\n{TWO}{TWO}"))["3:5"]
    assert configured(f"pairs:\n{TWO}{TWO.replace('}', ', name: other}')}").code == 0


@pytest.mark.parametrize("text", ["0s", "30", "-1s", "1.5h", "1s1m", "99999d", "", "1h 30m", "١s", "9" * 5000 + "s"])
def test_intervals_that_are_none(text: str) -> None:
    ran = run_here("mirror", "iceberg:/w", "ducklake:l", "--interval", text)
    assert ran.code == 2 and "interval" in ran.err


@pytest.mark.parametrize(("package", "option"), [("yaml", "--config"), ("prometheus_client", "--metrics-file")])
def test_without_a_package_the_extra_is_named(
    package: str, option: str, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    named = ["--config", "x"] if package == "yaml" else ["iceberg:/w", "ducklake:l", option, str(tmp_path / "m.prom")]
    ran = run_here("mirror", *named)
    assert ran.code == 2 and option in ran.err and "ducklake-bridge[mirror]" in ran.err
    assert run_here("mirror", "iceberg:/w", "ducklake:l").code == 0  # neither is needed without it


def test_the_code_of_the_loop_is_that_of_the_command(loop: Loop) -> None:
    for code in (0, 3, 5):
        loop.meanwhile = lambda _, code=code: code  # type: ignore[misc]
        assert run_here("mirror", "iceberg:/w", "ducklake:l", "--once").code == code
    assert run_here("mirror").code == 2 and run_here("mirror", "iceberg:/w").code == 2


def test_metrics_that_cannot_be_written_do_not_end_the_run(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = TableOutcome(TableName((), "t"), TableName((), "t"), State.CURRENT)
    loop.rounds = (Round(Pair("iceberg:a", "ducklake:b"), 1.0, 1.0, (outcome,)),) * 2
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    ran = run_here("mirror", "iceberg:/w", "ducklake:l", "--metrics-file", tmp_path / "m.prom")
    assert ran.code == 0 and ran.err.count("No space left on device") == 2


WAITING = """
import sys, time, types
module = types.ModuleType("bridge.mirroring.loop")
def mirror(pairs, *, stop, **_):
    print("waiting", file=sys.stderr, flush=True)
    stop.wait(60)
    print("asked", file=sys.stderr, flush=True)
    time.sleep(STUCK)
    return 0
module.mirror = mirror
sys.modules["bridge.mirroring.loop"] = module
from bridge.cli.main import main
sys.argv = ["ducklake-bridge", "mirror", "iceberg:/w", "ducklake:l", "--log-format", "json"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends(number: int) -> None:
    for stuck, code in ((False, 0), (True, 130)):
        script = WAITING.replace("STUCK", "60" if stuck else "0")
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stderr is not None and process.stderr.readline() == "waiting\n"
        process.send_signal(number)
        asked, stopping = sorted((process.stderr.readline(), process.stderr.readline()))
        assert asked == "asked\n"
        assert json.loads(stopping)["message"] == "stopping when the commit in hand is done; once more stops at once"
        if stuck:
            process.send_signal(number)
        process.communicate(timeout=20)
        assert process.returncode == code
