"""S3 as the ecosystem configures it: AWS_* variables, else the profile in ~/.aws; nothing of it is ever shown.

pyarrow finds credentials by itself, in more places than these; what is read here is what it does not: the endpoint, and
what DuckDB needs to be told.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from bridge.errors import UsageError

__all__ = ["ANY_REGION", "REQUEST", "Keys", "S3Settings", "filesystem", "fingerprint", "region_of", "settings"]

_CONNECT, REQUEST, _TRIES = 5.0, 20.0, 3
ANY_REGION = "us-east-1"  # what servers other than Amazon's expect when nobody says


@dataclass(frozen=True, slots=True)
class Keys:
    """Fixed credentials; their text says nothing."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """`endpoint` is host and port ("": Amazon's own), reached by path style; `region` "" is not said; `keys` None: no
    fixed ones, the provider chain may still find some."""

    endpoint: str
    secure: bool
    region: str
    keys: Keys | None

    @property
    def url(self) -> str:
        """The endpoint as an address, "" for Amazon's own."""
        return f"{'https' if self.secure else 'http'}://{self.endpoint}" if self.endpoint else ""


def settings(environment: Mapping[str, str] | None = None) -> S3Settings:
    """What is configured; UsageError for an endpoint that is no address."""
    given = os.environ if environment is None else environment
    profile, services = _profile(given)
    stated = [given.get("AWS_ENDPOINT_URL_S3"), given.get("AWS_ENDPOINT_URL")]
    ignored = given.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    url = "" if ignored else next((each for each in (*stated, services, profile.get("endpoint_url")) if each), "")
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/")):
        raise UsageError("the configured S3 endpoint is not http://HOST:PORT or https://HOST", hint="AWS_ENDPOINT_URL")
    region = given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION") or profile.get("region", "")
    keys = None
    # a profile that is named wins over nothing, variables win over both, as in Amazon's own tools
    for source in (
        {key.lower(): value for key, value in given.items() if key.startswith("AWS_")},
        profile,
    ):
        if source.get("aws_access_key_id") and source.get("aws_secret_access_key"):
            token = source.get("aws_session_token", "")
            keys = Keys(source["aws_access_key_id"], source["aws_secret_access_key"], token)
            break
    return S3Settings(parts.netloc.rpartition("@")[2], parts.scheme != "http", region, keys)


def fingerprint() -> int:
    """Changes when anything that is configured by variables does."""
    return hash(tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith("AWS_"))))


def _profile(given: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The profile's settings from both files, and the endpoint of its services section for S3."""
    name = given.get("AWS_PROFILE") or given.get("AWS_DEFAULT_PROFILE") or "default"
    home = os.path.join(given.get("HOME") or os.path.expanduser("~"), ".aws")
    config = _ini(given.get("AWS_CONFIG_FILE") or os.path.join(home, "config"))
    credentials = _ini(given.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, "credentials"))
    found: dict[str, str] = {}
    for parser, section in ((config, f"profile {name}" if name != "default" else name), (credentials, name)):
        if parser.has_section(section):
            found |= dict(parser.items(section))
    services = f"services {found.get('services', '')}"
    nested = config.get(services, "s3", fallback="") if config.has_section(services) else ""
    lines = (line.partition("=") for line in nested.splitlines())
    return found, next((value.strip() for key, _, value in lines if key.strip() == "endpoint_url"), "")


def _ini(path: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        raise UsageError(f"{path} is not a configuration file of the AWS tools") from None
    return parser


def region_of(bucket: str) -> str:
    """The region of a bucket when none is configured."""
    return ANY_REGION if settings().endpoint else str(pafs.resolve_s3_region(bucket))


def filesystem(bucket: str) -> Any:
    """pyarrow's filesystem for a bucket, with an end to its patience."""
    found = settings()
    given: dict[str, Any] = {}
    if found.endpoint:
        given = {"endpoint_override": found.endpoint, "scheme": "https" if found.secure else "http"}
    region = found.region or region_of(bucket)
    return pafs.S3FileSystem(
        region=region,
        connect_timeout=_CONNECT,
        request_timeout=REQUEST,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        **given,
    )
