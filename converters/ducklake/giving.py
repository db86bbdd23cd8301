"""The process that has DuckDB read rows of a lake: the question comes in as JSON, the rows go into an Arrow file.

Run as `python -m converters.ducklake.giving`; it prints nothing but an error.
"""

from __future__ import annotations

import json
import sys

import duckdb
import pyarrow as pa

from bridge.errors import BridgeError
from converters.ducklake.extensions import connect
from converters.ducklake.identifiers import identifier
from converters.ducklake.remote import connect_objects

__all__ = ["main"]

_BATCH = 65_536


def main() -> None:
    """Write the rows of one query."""
    asked = json.load(sys.stdin)
    try:
        connection = connect(*asked["extensions"])
        if asked["objects"]:
            connect_objects(connection)
        connection.execute(asked["attach"])
        wide = [
            f"CAST({identifier(name)} AS VARCHAR) AS {identifier(name)}"
            for name, type_, *_ in connection.execute(f"DESCRIBE {asked['query']}").fetchall()
            if type_ in ("HUGEINT", "UHUGEINT", "VARIANT")  # Arrow has doubles for the first, and nothing for the last
        ]
        query = f"SELECT * REPLACE ({', '.join(wide)}) FROM ({asked['query']})" if wide else asked["query"]
        reader = connection.execute(query).to_arrow_reader(_BATCH)
        with pa.OSFile(asked["path"], "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except (duckdb.Error, BridgeError, pa.ArrowException) as error:
        sys.stdout.write(str(error).splitlines()[0])


if __name__ == "__main__":
    main()
