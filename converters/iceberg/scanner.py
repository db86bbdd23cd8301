"""The rows of an Iceberg table, read by PyIceberg; it shares nothing with the reader but the metadata file.

PyIceberg 0.12 reads no equality deletes, no Avro data and no version 1 inline manifests, and turns a NULL list of
structs into an empty one after the struct evolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bridge.errors import BridgeError
from bridge.model.paths import PathMap, apply_map
from converters import storage

__all__ = ["IcebergRows"]


class IcebergRows:
    """The rows at a snapshot ("": now), as an Arrow schema and batches."""

    def __init__(self, metadata: str, snapshot: str, path_map: PathMap, content: bytes | None = None) -> None:
        """`content`: what the catalog returned, where the metadata file itself cannot be read."""
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.exceptions import NotInstalledError
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.table import StaticTable
        from pyiceberg.table.metadata import TableMetadataUtil

        class MappedIO(PyArrowFileIO):
            """Opens stored paths where they are now."""

            def new_input(self, location: str) -> Any:
                return super().new_input(apply_map(location, path_map))

        try:
            if content is None:
                table = StaticTable.from_metadata(metadata, storage.properties())
                table.io = MappedIO(table.io.properties)
            else:
                stated = TableMetadataUtil.parse_raw(content.decode())
                table = StaticTable(("t",), stated, metadata, MappedIO(storage.properties()), NoopCatalog("returned"))
            scan = table.scan(snapshot_id=int(snapshot)) if snapshot else table.scan()
            self._batches = scan.to_arrow_batch_reader()
            self.schema: pa.Schema = self._batches.schema
        except (ValueError, TypeError, NotImplementedError, NotInstalledError, OSError, KeyError) as error:
            raise BridgeError(f"PyIceberg cannot read {metadata}: {error}") from error

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except (ValueError, TypeError, NotImplementedError, OSError, KeyError, pa.ArrowException) as error:
            raise BridgeError(f"PyIceberg cannot read the rows: {error}") from error
