"""The guard: source files that a lake shares must never be scheduled for deletion by the lake.

On SQLite and PostgreSQL a trigger drops such rows, and maintenance goes on. A DuckDB file has no triggers: there the
table gets a CHECK, and maintenance that would schedule a source file fails instead. All of it lives in the catalog,
whatever client opens it.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import CheckConstraint, CreateTable, DropTable

from converters.ducklake.catalog import reads
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import TABLES

__all__ = ["is_guarded", "lift", "put"]

_NAME = "ducklake_files_scheduled_for_deletion"
_TRIGGER = "bridge_keep_source_files"


def is_guarded(session: Session) -> bool:
    """Whether the guard is in the catalog."""
    if session.place.backend == "sqlite":
        return session.has_table(_TRIGGER)
    if session.place.is_server:
        query = "SELECT count(*) FROM pg_trigger WHERE tgname = :trigger AND tgrelid = to_regclass(:name)"
        return bool(session.connection.execute(sa.text(query), {"trigger": _TRIGGER, "name": _NAME}).scalar())
    found = session.connection.execute(
        sa.text("SELECT count(*) FROM duckdb_constraints() WHERE table_name = :name AND constraint_type = 'CHECK'"),
        {"name": _NAME},
    )
    return bool(found.scalar())


def put(session: Session) -> bool:
    """Put the guard in; False when somebody else's absolute files are scheduled already and it cannot be."""
    if is_guarded(session):
        return True
    if session.place.backend == "sqlite":
        session.define(
            f"CREATE TRIGGER {_TRIGGER} BEFORE INSERT ON {_NAME} WHEN NOT NEW.path_is_relative "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
        return True
    if session.place.is_server:
        session.define(
            f"CREATE OR REPLACE FUNCTION {_TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        session.define(
            f"CREATE TRIGGER {_TRIGGER} BEFORE INSERT ON {_NAME} FOR EACH ROW WHEN (NOT NEW.path_is_relative) "
            f"EXECUTE FUNCTION {_TRIGGER}()"
        )
        return True
    if reads.has_foreign_absolute(session):
        return False
    _recreate(session, guarded=True)
    return True


def lift(session: Session) -> None:
    """Take the guard out."""
    if not is_guarded(session):
        return
    if session.place.backend == "sqlite":
        session.define(f"DROP TRIGGER {_TRIGGER}")
    elif session.place.is_server:
        session.define(f"DROP TRIGGER {_TRIGGER} ON {_NAME}")
        session.define(f"DROP FUNCTION {_TRIGGER}()")
    else:
        _recreate(session, guarded=False)


def _recreate(session: Session, guarded: bool) -> None:
    """DuckDB cannot add or drop a CHECK in place: the table is made again with its rows."""
    plain = TABLES[_NAME]
    made = plain.to_metadata(sa.MetaData())
    if guarded:
        made.append_constraint(CheckConstraint("path_is_relative"))
    kept = session.connection.execute(sa.select(plain)).all()
    session.connection.execute(DropTable(plain))
    session.connection.execute(CreateTable(made))
    if kept:
        session.run(made.insert(), [dict(row._mapping) for row in kept])
