"""Two sets of rows as multisets."""

from __future__ import annotations

import pyarrow as pa

from bridge.ports import Rows
from converters.parquet import quiet
from converters.parquet.quoting import identifier

__all__ = ["difference"]


def difference(mine: Rows, theirs: Rows) -> str:
    """How the first differ from the second; empty when they do not."""
    held, wanted = pa.Table.from_batches(list(mine), mine.schema), pa.Table.from_batches(list(theirs), theirs.schema)
    columns = ", ".join(map(identifier, wanted.schema.names))
    mine_as = ", ".join(_as_whole(name, held.schema, wanted.schema) for name in wanted.schema.names)
    with quiet.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("mine", held)
        connection.register("theirs", wanted)
        first, second = f"SELECT {mine_as} FROM mine", f"SELECT {columns} FROM theirs"
        missing, extra = (
            connection.execute(f"SELECT count(*) FROM ({one} EXCEPT ALL {other})").fetchall()[0][0]
            for one, other in ((second, first), (first, second))
        )
    if held.num_rows == wanted.num_rows and not missing and not extra:
        return ""
    return f"{held.num_rows} rows where the source has {wanted.num_rows}; {missing} missing, {extra} that it has not"


def _as_whole(name: str, held: pa.Schema, wanted: pa.Schema) -> str:
    """A column as it is; a number that the source gives as text, since it has more digits than Arrow, as text too."""
    at = identifier(name)
    if name not in held.names:
        return at
    kind, other = held.field(name).type, wanted.field(name).type
    number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not number or not (pa.types.is_string(other) or pa.types.is_large_string(other)):
        return at
    texts = (f"CAST(TRY_CAST({at} AS {whole}) AS VARCHAR)" for whole in ("HUGEINT", "UHUGEINT"))
    return f"coalesce({', '.join(texts)}, CAST({at} AS VARCHAR)) AS {at}"
