"""That a published table was verified as it is: a note beside its metadata, which holds for that very state alone."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from bridge.errors import BridgeError
from converters import storage
from converters.iceberg.warehouse import VERIFIED, Held, document

__all__ = ["is_noted", "note"]


def _text(held: Held, rows: int) -> bytes:
    digest = hashlib.sha256(document(held.metadata)).hexdigest()
    return json.dumps({"metadata": held.path, "digest": digest, "rows": rows}, sort_keys=True).encode()


def _place(held: Held) -> str:
    return f"{held.metadata['location']}/metadata/{VERIFIED}"


def note(held: Held, rows: int) -> None:
    """Note a state; without the note it is verified once more, which is all that a failure costs."""
    with suppress(BridgeError):
        storage.write(_place(held), _text(held, rows), f".{VERIFIED}.tmp", durable=False)


def is_noted(held: Held, rows: int) -> bool:
    """Whether the table is still in the state that was noted, and the source still has as many rows."""
    try:
        return storage.read(_place(held), "note") == _text(held, rows)
    except BridgeError:
        return False
