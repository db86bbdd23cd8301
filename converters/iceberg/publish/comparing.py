"""Two sets of rows as multisets."""

from __future__ import annotations

from bridge.ports import Rows
from converters.parquet import quiet

__all__ = ["difference"]


def difference(mine: Rows, theirs: Rows) -> str:
    """How the first differ from the second; empty when they do not."""
    import pyarrow as pa

    held, wanted = pa.Table.from_batches(list(mine), mine.schema), pa.Table.from_batches(list(theirs), theirs.schema)
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in wanted.schema.names)
    with quiet.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("mine", held)
        connection.register("theirs", wanted)
        first, second = f"SELECT {columns} FROM mine", f"SELECT {columns} FROM theirs"
        missing, extra = (
            connection.execute(f"SELECT count(*) FROM ({one} EXCEPT ALL {other})").fetchall()[0][0]
            for one, other in ((second, first), (first, second))
        )
    if held.num_rows == wanted.num_rows and not missing and not extra:
        return ""
    return f"{held.num_rows} rows where the source has {wanted.num_rows}; {missing} missing, {extra} that it has not"
