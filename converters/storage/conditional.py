"""Objects of S3 that are written only where none is yet: `If-None-Match: *`, which pyarrow has no word for.

A request is signed here (AWS Signature Version 4) with fixed credentials; those that only a provider chain finds are
not within reach, and stores differ in what they know of the condition: a bucket is tried once before anything depends
on it.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import uuid
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from urllib.parse import quote

from bridge.errors import BridgeError, Unreachable
from converters.storage import s3

__all__ = ["created", "is_conditional", "signature"]

_CREATED, _THERE, _AGAIN = 200, 412, (409, 429, 500, 502, 503, 504)
_TRIES = 3
_TRIED: dict[object, bool] = {}


def is_conditional(uri: str) -> bool:
    """Whether the store of a path below a bucket keeps the condition; tried once with an object beside the path."""
    bucket, key = _parts(uri)
    held = (bucket, s3.fingerprint())
    if held not in _TRIED:
        _TRIED[held] = s3.settings().keys is not None and _try(bucket, f"{key}.{uuid.uuid4().hex[:12]}.tmp")
    return _TRIED[held]


def _try(bucket: str, key: str) -> bool:
    try:
        first, again = _send("PUT", bucket, key, b"?"), _send("PUT", bucket, key, b"?")
        with suppress(OSError, http.client.HTTPException):
            _send("DELETE", bucket, key)
        return first == _CREATED and again == _THERE
    except (OSError, http.client.HTTPException, BridgeError):
        return False


def created(uri: str, content: bytes) -> bool | None:
    """Whether the object is ours now, False when another is there; None when the answer does not tell."""
    bucket, key = _parts(uri)
    for attempt in range(_TRIES):
        try:
            status = _send("PUT", bucket, key, content)
        except (OSError, http.client.HTTPException):
            return None
        if status == _CREATED:
            return True
        if status == _THERE:
            return None if attempt else False  # it may be ours, of an attempt whose answer was another
        if status not in _AGAIN:
            raise Unreachable(f"{uri} cannot be written: the store answers {status}")
    return None


def _parts(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.split("://", 1)[1].partition("/")
    return bucket, key


def _send(method: str, bucket: str, key: str, content: bytes = b"") -> int:
    """One request; the status of its answer."""
    found = s3.settings()
    if found.keys is None:
        raise Unreachable(f"no fixed credentials for the bucket {bucket}")
    region = found.region or s3.region_of(bucket)
    host, path = found.endpoint, f"/{bucket}/{quote(key, safe='/-_.~')}"
    if not host:
        host = f"s3.{region}.amazonaws.com"
        if "." not in bucket:  # the certificate is for one level
            host, path = f"{bucket}.{host}", path.removeprefix(f"/{bucket}")
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": hashlib.sha256(content).hexdigest(), "x-amz-date": now}
    if method == "PUT":
        headers["if-none-match"] = "*"
    if found.keys.token:
        headers["x-amz-security-token"] = found.keys.token
    signed = signature(method, path, headers, found.keys, region)
    kind = http.client.HTTPSConnection if found.secure else http.client.HTTPConnection
    with closing(kind(host, timeout=s3.REQUEST)) as connection:
        connection.request(method, path, content, {**headers, "authorization": signed})
        answer = connection.getresponse()
        answer.read()
        return answer.status


def signature(method: str, path: str, headers: Mapping[str, str], keys: s3.Keys, region: str) -> str:
    """The authorization of a request without a query; `headers`, in lower case, hold x-amz-date and the content's
    hash."""
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = "\n".join((method, path, "", lines, names, headers["x-amz-content-sha256"]))
    scope = f"{headers['x-amz-date'][:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest))
    secret = f"AWS4{keys.secret}".encode()
    for part in scope.split("/"):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    found = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    return f"AWS4-HMAC-SHA256 Credential={keys.id}/{scope},SignedHeaders={names},Signature={found}"
