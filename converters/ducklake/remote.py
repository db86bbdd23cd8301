"""DuckDB and object stores: what it must be told to reach the objects that pyarrow reaches, and that in words."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from bridge.errors import Unreachable
from bridge.model.paths import scheme
from converters.ducklake.extensions import load, packaged
from converters.ducklake.identifiers import literal
from converters.storage import s3

__all__ = ["connect_objects", "needs_objects", "setup_words"]

_PATIENCE = ("SET http_timeout = 20", "SET http_retries = 2")


def needs_objects(paths: Iterable[str]) -> bool:
    """Whether any of the paths lies in an object store."""
    return any(scheme(path) for path in paths)


def connect_objects(connection: duckdb.DuckDBPyConnection) -> None:
    """Load httpfs and make a secret of what is configured; Unreachable names the extra when that cannot be done."""
    try:
        load(connection, "httpfs")
    except Unreachable as error:
        raise Unreachable(error.message, hint="pip install 'ducklake-bridge[s3]'") from error
    for statement in _PATIENCE:
        connection.execute(statement)
    found = s3.settings()
    if found.keys is not None:
        keys = [f"KEY_ID {literal(found.keys.id)}", f"SECRET {literal(found.keys.secret)}"]
        if found.keys.token:
            keys.append(f"SESSION_TOKEN {literal(found.keys.token)}")
    else:
        try:
            load(connection, "aws")
        except Unreachable:
            return  # objects that anybody may read
        keys = ["PROVIDER credential_chain"]
    try:
        connection.execute(f"CREATE SECRET ({', '.join(['TYPE s3', *keys, *_place(found)])})")
    except duckdb.Error:
        raise Unreachable(
            "DuckDB makes no secret of the configured credentials", hint="set AWS_ACCESS_KEY_ID and the like"
        ) from None  # the text of the error may hold the statement


def _place(found: s3.S3Settings) -> list[str]:
    said = []
    region = found.region or (s3.ANY_REGION if found.endpoint else "")
    if region:
        said.append(f"REGION {literal(region)}")
    if found.endpoint:
        said += [f"ENDPOINT {literal(found.endpoint)}", "URL_STYLE 'path'", f"USE_SSL {str(found.secure).lower()}"]
    return said


def setup_words() -> str:
    """Statements that a person runs before ATTACH; where secrets go they show dots."""
    found = s3.settings()
    path = packaged("httpfs")
    keys = ["KEY_ID '...'", "SECRET '...'"] + (["SESSION_TOKEN '...'"] if found.keys and found.keys.token else [])
    secret = ", ".join(["TYPE s3", *keys, *_place(found)])
    return f"{f'LOAD {literal(str(path))}' if path else 'LOAD httpfs'}; CREATE SECRET ({secret}); "
