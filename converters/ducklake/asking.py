"""The process that asks DuckDB: a lake and queries come in as JSON on standard input, answers go out as JSON.

Run as `python -m converters.ducklake.asking EXTENSION ...`, so that the catalog is never open twice in one process. It
gets ready before it reads. pyarrow, which takes longer to import than most questions to answer, is imported where it is
needed.
"""

from __future__ import annotations

import json
import sys

import duckdb

from bridge.errors import BridgeError
from converters.ducklake.extensions import connect

__all__ = ["main"]


def _load_expected(connection: duckdb.DuckDBPyConnection, path: str) -> None:
    import pyarrow as pa

    with pa.OSFile(path, "rb") as source:
        incoming = pa.ipc.open_stream(source)
        connection.register("incoming", incoming)
        connection.execute("CREATE TABLE expected AS SELECT * FROM incoming")
        connection.unregister("incoming")


def main() -> None:
    """Answer each query with its rows as text, or with the error that DuckDB raised."""
    answers: list[dict[str, object]] = []
    try:
        connection = connect(*sys.argv[1:])
        asked = json.load(sys.stdin)
        if asked["objects"]:
            from converters.ducklake.remote import connect_objects

            connect_objects(connection)
        connection.execute(asked["attach"])
        if "expected" in asked:
            _load_expected(connection, asked["expected"])
    except (duckdb.Error, BridgeError) as error:
        json.dump({"error": str(error).splitlines()[0]}, sys.stdout)
        return
    for query in asked["queries"]:
        try:
            rows = connection.execute(query).fetchall()
            answers.append({"rows": [[None if value is None else str(value) for value in row] for row in rows]})
        except duckdb.Error as error:
            answers.append({"error": str(error).splitlines()[0]})
    json.dump({"answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
