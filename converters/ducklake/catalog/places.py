"""Where a catalog is: a DuckDB or SQLite file, or a schema of a PostgreSQL database."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bridge.errors import UsageError
from bridge.model.secrets import Secrets, joined, shown, split
from converters.ducklake.identifiers import literal

__all__ = ["CONNECT_SECONDS", "Place", "parse_place"]

CONNECT_SECONDS = 10
_LATER = {"mysql": "MySQL"}
_PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a catalog is: backend `duckdb` or `sqlite` and the file's absolute path, or backend `postgres`, the
    connection string without its secrets and the schema. `path` is what may be printed; the secrets must not be."""

    backend: str
    path: str
    schema: str = ""
    secrets: Secrets = field(default=(), repr=False)

    @property
    def is_server(self) -> bool:
        return self.backend == "postgres"

    @property
    def connection(self) -> str:
        """libpq's connection string, without secrets."""
        return self.path.partition(":")[2]

    @property
    def attach(self) -> str:
        """What stands behind `ducklake:` in DuckDB's ATTACH; secrets are left out."""
        return f"sqlite:{self.path}" if self.backend == "sqlite" else self.path

    @property
    def attach_whole(self) -> str:
        """The same with every secret but the password, which goes by the environment."""
        others = [each for each in self.secrets if each[0] != "password"]
        return f"postgres:{joined(self.connection, others)}" if self.is_server else self.attach

    def statement(self, *options: str, whole: bool = False) -> str:
        """DuckDB's statement that attaches it as `lake`; `whole` only for DuckDB's ears."""
        schema = [f"METADATA_SCHEMA {literal(self.schema)}"] if self.schema not in ("", _PUBLIC) else []
        listed = ", ".join((*schema, *options))
        attach = self.attach_whole if whole else self.attach
        return f"ATTACH {literal(f'ducklake:{attach}')} AS lake" + (f" ({listed})" if listed else "")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a process that is to attach it."""
        found = {} if "PGCONNECT_TIMEOUT" in os.environ else {"PGCONNECT_TIMEOUT": str(CONNECT_SECONDS)}
        passwords = [value for key, value in self.secrets if key == "password"]
        found |= {"PGPASSWORD": passwords[-1]} if passwords else {}
        return found if self.is_server else {}

    def hide(self, text: str) -> str:
        """A text of somebody else's without our secrets."""
        for _, value in self.secrets:
            text = text.replace(value, "***") if value else text
        return text


def parse_place(rest: str, schema: str | None = None) -> Place:
    """The place behind `ducklake:REST`; UsageError for backends that are not built."""
    head, colon, tail = rest.partition(":")
    if colon and head in _LATER:
        raise UsageError(
            f"{_LATER[head]} catalogs are not built",
            hint="DuckDB 1.5.5 cannot write to them; use a DuckDB file, sqlite:FILE or postgres:CONNECTION",
        )
    if colon and head == "postgresql":
        raise UsageError(
            f"{shown(f'ducklake:{rest}')}: DuckDB knows no catalog of the kind {head}:",
            hint="write ducklake:postgres:CONNECTION, such as ducklake:postgres:dbname=lake",
        )
    if colon and head == "postgres":
        return _server(f"postgresql:{tail}" if tail.startswith("//") else tail, schema)
    if schema is not None:
        raise UsageError("--metadata-schema is for lakes on PostgreSQL", hint="leave it out")
    backend, path = ("sqlite", tail) if colon and head == "sqlite" else ("duckdb", rest)
    if backend == "duckdb" and colon and head == "duckdb":
        path = tail
    if not path or "://" in path:
        raise UsageError(
            f"{shown(f'ducklake:{rest}')} is not a local catalog file",
            hint="write ducklake:FILE, ducklake:sqlite:FILE or ducklake:postgres:CONNECTION",
        )
    return Place(backend, os.path.abspath(os.path.expanduser(path)))


def _server(connection: str, schema: str | None) -> Place:
    try:
        kept, secrets = split(connection)
    except ValueError:  # its text might hold what must not be shown
        raise UsageError(
            "the connection string behind ducklake:postgres: cannot be read",
            hint="write key=value pairs, values with spaces in single quotes, or a postgresql:// URI in which @, / "
            "and : of a password are percent-encoded",
        ) from None
    if schema is not None and not 0 < len(schema.encode()) < 64:
        raise UsageError(
            f"--metadata-schema {schema!r} is no name that PostgreSQL can hold", hint="it takes 1 to 63 bytes"
        )
    # DuckDB 1.5.5 always takes `public`, whatever the search_path of the role or the database
    return Place("postgres", f"postgres:{kept}", schema or _PUBLIC, secrets)
