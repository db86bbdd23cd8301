"""Tables in an object store: one file layer reads them, DuckDB over httpfs, and trouble is told in time."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import pytest

import bridge
from bridge.errors import Missing, Unanswered, Unreachable
from bridge.model.paths import is_within
from converters import storage
from converters.ducklake.extensions import connect, packaged
from converters.storage import s3
from tests.judge import Subject, Version, judge
from tests.support import Case, Ran, case, lake_rows, run_here, tree_hash, versions
from tests.test_kinds import sampled

pytest.importorskip("localbucket", reason="the S3 server comes with the extra test")
SECRET = "v3ry-s3cret-k3y"
KINDS = ("evo_struct", "meta_gzip", "v2_cow", "part_identity", "null_manifest", "hist_expired")


@dataclass(frozen=True)
class Store:
    """A server whose buckets are folders."""

    url: str
    folder: Path

    def bucket(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    @property
    def setup(self) -> list[str]:
        """What the judge runs first."""
        place = self.url.removeprefix("http://")
        return [
            f"LOAD '{packaged('httpfs')}'",
            f"CREATE SECRET (TYPE s3, KEY_ID 'k', SECRET 's', REGION 'us-east-1', ENDPOINT '{place}', URL_STYLE 'path',"
            " USE_SSL false)",
        ]


@contextmanager
def serving(folder: Path) -> Iterator[Store]:
    folder.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "localbucket", str(folder), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield Store(f"http://127.0.0.1:{port}", folder)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving(tmp_path / "buckets") as made:
        configure(monkeypatch, made.url)
        yield made


def configure(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def upload(store: Store, found: Case, bucket: str = "source", name: str = "") -> str:
    """The fixture's files in a bucket; the address of its metadata file."""
    target = store.bucket(bucket) / (name or found.kind)
    shutil.copytree(found.home, target)
    return f"s3://{bucket}/{name or found.kind}/{found.facts['metadata']}"


def maps(found: Case, bucket: str = "source", name: str = "", scheme: str = "s3") -> list[str]:
    home = f"{scheme}://{bucket}/{name or found.kind}"
    return [part for old, new in found.facts["map_prefix"] for part in ("--map-prefix", f"{old}={home}/{new}")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(KINDS, set(), {"part_identity"}))
def test_a_table_in_a_bucket_is_registered_where_it_lies(kind: str, store: Store, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    place = upload(store, found)
    store.bucket("lake")
    before = tree_hash(store.folder / "source")
    options = ["--as", "main.t", *maps(found, scheme="s3a"), "--data-path", "s3n://lake/files/"]
    done = run_here("migrate", f"iceberg:{place}", f"ducklake:{lake}", *options, "--json", "--verify", "rows")
    assert done.code == 0, done.out + done.err
    said = "\n".join(done.json["next"])
    assert "LOAD" in said and "httpfs" in said and "ENDPOINT" in said
    assert SECRET not in done.out + done.err and "somebody" not in done.out
    subject = Subject(("main", "t"), versions(found, lake))
    assert judge(str(lake), [subject], scratch=tmp_path / "judge", setup=store.setup, change=False, filters=6) == []
    assert tree_hash(store.folder / "source") == before
    again = run_here("migrate", f"iceberg:{place}", f"ducklake:{lake}", *options[:-2], "--json")
    assert again.code == 0 and again.json["tables"][0]["action"] == "nothing"


@pytest.mark.slow
@pytest.mark.usefixtures("tasks_here")
def test_rewritten_files_of_partitions_lie_in_a_bucket_as_elsewhere(store: Store, tmp_path: Path) -> None:
    found, lake = case("part_identity"), tmp_path / "lake.ducklake"
    store.bucket("lake")
    asked = ["--as", "main.t", *found.maps, "--data-path", "s3://lake/files/", "--rewrite", "always"]
    done = run_here("migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}", *asked, "--json")
    assert done.code == 0, done.out + done.err
    paths = [path for (path,) in lake_rows(lake, "SELECT path FROM ducklake_data_file WHERE partition_id IS NOT NULL")]
    assert len(paths) == lake_rows(lake, "SELECT count(*) FROM ducklake_data_file")[0][0]
    assert "p=50%25" in {path.rpartition("/")[0] for path in paths}
    on_disk = {str(path.relative_to(store.folder / "lake/files/main/t")) for path in store.folder.rglob("*.parquet")}
    assert on_disk == set(paths)
    expected = sorted(versions(found, lake)[-1].rows.select(["id", "p"]).to_pylist(), key=str)
    with connect("ducklake", "httpfs") as connection:
        for statement in (*store.setup, f"ATTACH 'ducklake:{lake}' AS lake (DATA_INLINING_ROW_LIMIT 0)", "USE lake"):
            connection.execute(statement)
        found_rows = connection.execute("SELECT id, p FROM t").to_arrow_table().to_pylist()
        assert sorted(found_rows, key=str) == expected
        connection.execute("INSERT INTO t FROM t")
        connection.execute("CALL ducklake_merge_adjacent_files('lake')")
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(2 * len(expected),)]
    live = "SELECT count(*), count(DISTINCT regexp_replace(path, '[^/]*$', '')) FROM ducklake_data_file"
    [(files, directories)] = lake_rows(lake, f"{live} WHERE end_snapshot IS NULL")
    # NULL and the text that stands for it in a path share a directory
    assert (files, directories) == (len(paths), len(paths) - 1)


@pytest.mark.slow
def test_a_warehouse_in_a_bucket_is_followed_and_its_lake_writes_beside_it(store: Store, tmp_path: Path) -> None:
    found, lake = case("evo_struct"), tmp_path / "lake.ducklake"
    home = store.bucket("source") / "wh" / "db" / "t"
    shutil.copytree(found.home / "table", home)
    store.bucket("lake")
    newest = sorted(home.glob("metadata/v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
    (home / "metadata" / "version-hint.text").unlink(missing_ok=True)
    for path in newest[-2:]:
        path.rename(store.folder / path.name)
    [(old, _)] = found.facts["map_prefix"]
    moved = ["--map-prefix", f"{old}=s3://source/wh/db/t", "--data-path", "s3://lake/files"]

    def migrate(*options: str) -> Ran:
        return run_here("migrate", "iceberg:s3a://source/wh", f"ducklake:{lake}", "--json", *moved, *options)

    first = migrate()
    assert first.code == 0, first.out + first.err
    for path in newest[-2:]:
        (store.folder / path.name).rename(path)
    second = migrate()
    assert second.code == 0 and second.json["tables"][0]["action"] == "append", second.out + second.err
    subject = Subject(("db", "t"), versions(found, lake))
    assert judge(str(lake), [subject], scratch=tmp_path / "judge", setup=store.setup, change=False, filters=6) == []
    connection = duckdb.connect()
    for statement in (
        *store.setup,
        f"LOAD '{packaged('ducklake')}'",
        f"ATTACH 'ducklake:{lake}' AS lake",
        "USE lake.db",
    ):
        connection.execute(statement)
    columns = [row[0] for row in connection.execute("DESCRIBE t").fetchall()]
    connection.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    connection.execute("INSERT INTO t SELECT * FROM t")
    connection.execute(f'DELETE FROM t WHERE "{columns[0]}" = (SELECT min("{columns[0]}") FROM t)')
    left = connection.execute("SELECT * FROM t").to_arrow_table()
    assert len(left) < 2 * len(found.rows(found.facts["current"]))
    connection.close()
    assert list((store.folder / "lake" / "files").rglob("*.parquet"))
    now = Subject(("db", "t"), (Version(None, None, left),))
    assert judge(str(lake), [now], scratch=tmp_path / "judge", setup=store.setup, change=False, filters=6) == []


@pytest.mark.slow
def test_the_data_path_and_the_source_are_compared_across_s3_s3a_and_s3n(store: Store, tmp_path: Path) -> None:
    found = case("evo_struct")
    place = upload(store, found)
    for path in ("s3n://source/evo_struct/table/lake", "s3a://source/"):
        done = run_here("plan", f"iceberg:{place}", f"ducklake:{tmp_path / 'lake'}", "--json", "--data-path", path,
                        *maps(found, scheme="s3a"))  # fmt: skip
        assert "data-path-overlap" in done.codes()["blocked"], done.out
    assert not is_within("s3://source-2/x", "s3a://source")


class Denying(BaseHTTPRequestHandler):
    """Refuses everything, as Amazon does."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        content = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET


@contextmanager
def denying() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def plan(locator: str, tmp_path: Path, *options: str) -> Ran:
    done = run_here("migrate", locator, f"ducklake:{tmp_path / 'lake.ducklake'}", "--json", *options)
    assert not list(tmp_path.glob("lake*")), "half-written"
    assert SECRET not in done.out + done.err
    return done


def test_a_bucket_that_denies_is_not_one_without_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with denying() as url:
        configure(monkeypatch, url)
        for ask in (storage.is_file, storage.list_directory, lambda uri: storage.read(uri, "thing")):
            with pytest.raises(Unanswered, match="access is denied"):
                ask("s3://source/x")
        with pytest.raises(Unanswered, match="access is denied"):
            storage.sizes([f"s3://source/{number}" for number in range(8)])
        done = plan("iceberg:s3://source/t", tmp_path)
        assert done.code == 6 and "AWS_ACCESS_KEY_ID" in done.json["hint"]


def test_what_is_not_there_is_missing(store: Store, tmp_path: Path) -> None:
    store.bucket("source")
    with pytest.raises(Missing):
        storage.read("s3://source/x", "thing")
    assert storage.sizes(["s3://source/x"]) == [None]
    with pytest.raises(Unreachable, match="the bucket nowhere is not there"):
        storage.read("s3://nowhere/x", "thing")
    assert plan("iceberg:s3://source/t", tmp_path).code == 6
    gone = plan("iceberg:s3://nowhere/t", tmp_path)
    assert gone.code == 6 and "the bucket nowhere is not there" in gone.json["error"]
    assert plan("iceberg:s3:///t", tmp_path).code == 2


@pytest.mark.slow
def test_a_server_that_is_gone_or_silent_is_told_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "REQUEST", 1.0)
    with silent() as url:
        for each in (url, "http://127.0.0.1:9"):
            configure(monkeypatch, each)
            begun = time.monotonic()
            done = plan("iceberg:s3://source/t", tmp_path)
            assert done.code == 6 and "does not answer" in done.json["error"], done.out
            with pytest.raises(Unanswered):
                storage.sizes([f"s3://source/{place}/{number}" for place in range(40) for number in range(3)])
            assert time.monotonic() - begun < 20


@pytest.mark.slow
def test_access_that_is_denied_later_costs_no_history(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old manifest that may not be read is no reason to leave snapshots behind."""
    found = case("evo_struct")
    place = upload(store, found)
    stored = json.loads((store.folder / "source" / "evo_struct" / str(found.facts["metadata"])).read_text())
    oldest = stored["snapshots"][0]["manifest-list"].rsplit("/", 1)[-1]

    class Partly(Denying):
        def do_GET(self) -> None:
            if oldest in self.path:
                super().do_GET()
                return
            host, port = store.url.removeprefix("http://").split(":")
            onward = HTTPConnection(host, int(port))
            onward.request(self.command, self.path, headers={"Range": self.headers.get("Range", "bytes=0-")})
            answer = onward.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("server", "date", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            onward.close()

        do_HEAD = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Partly) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configure(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
        done = plan(f"iceberg:{place}", tmp_path, *maps(found))
        server.shutdown()
    assert done.code == 6 and "access is denied" in done.json["error"], done.out


def test_settings_come_from_variables_then_from_the_profile(tmp_path: Path) -> None:
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text(
        "[profile work]\nregion = eu-west-1\nservices = here\n[services here]\ns3 =\n  endpoint_url = http://localhost:9000\n"
    )
    credentials.write_text("[work]\naws_access_key_id = a\naws_secret_access_key = b\n")
    files = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_PROFILE": "work"}
    found = s3.settings(files)
    assert (found.endpoint, found.secure, found.region) == ("localhost:9000", False, "eu-west-1")
    assert found.keys == s3.Keys("a", "b")
    over = s3.settings(
        files
        | {
            "AWS_ENDPOINT_URL": "http://x",
            "AWS_ENDPOINT_URL_S3": "https://y:1",
            "AWS_REGION": "r",
            "AWS_ACCESS_KEY_ID": "c",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": "t",
        }
    )
    assert (over.url, over.region, over.keys) == ("https://y:1", "r", s3.Keys("c", SECRET, "t"))
    assert SECRET not in repr(over)
    with pytest.raises(bridge.UsageError):
        s3.settings({"AWS_ENDPOINT_URL": f"http//{SECRET}"})


def test_without_httpfs_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from converters.ducklake import remote

    def absent(connection: duckdb.DuckDBPyConnection, name: str) -> None:
        raise Unreachable(f"the DuckDB extension {name} cannot be loaded")

    monkeypatch.setattr(remote, "load", absent)
    with duckdb.connect() as connection, pytest.raises(Unreachable) as caught:
        remote.connect_objects(connection)
    assert "ducklake-bridge[s3]" in caught.value.hint
