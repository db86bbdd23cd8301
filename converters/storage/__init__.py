"""The one door to files, local and in object stores: pyarrow's filesystems, our errors."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from bridge.errors import Blocked, Missing, Unanswered, Unreachable, UsageError
from bridge.model.paths import normalise, scheme
from converters.storage import conditional, s3

__all__ = [
    "SCHEMES",
    "absolute",
    "create",
    "filesystem",
    "is_exclusive",
    "is_file",
    "list_directory",
    "make_directory",
    "modified",
    "open_input",
    "parallel",
    "properties",
    "put",
    "raise_unanswered",
    "read",
    "reading",
    "remove",
    "remove_directory",
    "remove_tree",
    "settle",
    "sizes",
    "write",
]

SCHEMES = frozenset({"s3", "gs", "gcs", "http", "https"})
"""Schemes, beside plain paths, that both pyarrow and DuckDB may open."""

_THREADS = 16
_BLOCK = 8 << 20
_LISTING_PAYS = 4
_FILESYSTEMS: dict[object, Any] = {}
_QUIET = 30.0
_SILENT: dict[object, tuple[str, float]] = {}
"""Buckets whose server did not answer: why, and until when nobody asks again, so that many files do not all wait."""

_REFUSALS = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "TOKEN", "HTTP status 403")
_CREDENTIALS = "give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

Item = TypeVar("Item")
Result = TypeVar("Result")


def absolute(path: str) -> str:
    """A user's path in normal form; relative ones are taken from the working directory."""
    path = normalise(path)
    return path if scheme(path) else os.path.abspath(os.path.expanduser(path))


def _filesystem(uri: str) -> tuple[Any, str]:
    kind = scheme(uri)
    if kind and kind not in SCHEMES:
        raise Blocked(
            f"{uri}: {kind}:// paths cannot be opened", code="path-scheme", hint="map them: --map-prefix OLD=NEW"
        )
    if not kind:
        if "" not in _FILESYSTEMS:
            _FILESYSTEMS[""] = pafs.LocalFileSystem()
        return _FILESYSTEMS[""], uri
    bucket = uri.split("/", 3)[2]
    if not bucket:
        raise UsageError(f"{uri} names no bucket", hint=f"write {kind}://BUCKET/...")
    key = f"{kind}://{bucket}"
    held = (key, s3.fingerprint())
    told, until = _SILENT.get(held, ("", 0.0))
    if time.monotonic() < until:
        raise Unanswered(f"{uri} was not asked for: {told}", retryable=True)
    if held not in _FILESYSTEMS:
        try:
            made = s3.filesystem(bucket) if kind == "s3" else pafs.FileSystem.from_uri(key)[0]
            if kind == "s3":
                _require_bucket(made, bucket)
            _FILESYSTEMS[held] = made
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _trouble(uri, "cannot be opened", error) from error
    return _FILESYSTEMS[held], uri.split("://", 1)[1]


def _require_bucket(filesystem: Any, bucket: str) -> None:
    """A bucket that is not there answers every question like one without the object."""
    try:
        there = filesystem.get_file_info(bucket).type != pafs.FileType.NotFound
    except OSError as error:
        if not _is_refusal(error):
            raise
        return  # who may not look at the bucket may still read its objects
    if not there:
        raise Unreachable(f"the bucket {bucket} is not there", hint="check its name and AWS_ENDPOINT_URL")


def _is_refusal(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, PermissionError) or any(word in text for word in _REFUSALS)


def _trouble(uri: str, what: str, error: BaseException) -> Unreachable:
    """What went wrong with a file that may well be there; pyarrow tells kinds of it only in words."""
    if not scheme(uri):
        kind = Unanswered if isinstance(error, PermissionError) else Unreachable
        return kind(f"{uri} {what}: {_first_line(error)}")
    if _is_refusal(error):
        return Unanswered(f"{uri} {what}: access is denied", hint=_CREDENTIALS)
    if "NETWORK_CONNECTION" in str(error):
        said = f"the server of {uri.split('/', 3)[2]} does not answer"
        key = ("/".join(uri.split("/", 3)[:3]), s3.fingerprint())
        _SILENT[key] = (said, time.monotonic() + _QUIET)
        return Unanswered(f"{uri} {what}: {said}", hint="check AWS_ENDPOINT_URL and the network", retryable=True)
    return Unreachable(f"{uri} {what}: {_first_line(error)}")


def properties() -> dict[str, str]:
    """What PyIceberg must be told to reach the same objects; credentials it finds as pyarrow does."""
    found = s3.settings()
    said = {"s3.region": found.region or (s3.ANY_REGION if found.endpoint else ""), "s3.endpoint": found.url}
    return {key: value for key, value in said.items() if value}


def filesystem(uri: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a path, and the path in it."""
    return _filesystem(uri)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read(uri: str, what: str) -> bytes:
    """The whole content; Unreachable names `what` it was to be."""
    with open_input(uri, what) as stream:
        try:
            return bytes(stream.read())
        except OSError as error:
            raise _named(what, uri, error) from error


def open_input(uri: str, what: str) -> Any:
    """A random-access pyarrow file."""
    filesystem, path = _filesystem(uri)
    try:
        if not scheme(uri) and not stat.S_ISREG(os.stat(path).st_mode):
            raise Unreachable(f"{what} {uri} is not a regular file")
        return filesystem.open_input_file(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Missing(f"{what} {uri} is not there") from error
    except OSError as error:
        raise _named(what, uri, error) from error


def _named(what: str, uri: str, error: OSError) -> Unreachable:
    found = _trouble(uri, "cannot be read", error)
    return type(found)(f"{what} {found.message}", hint=found.hint, retryable=found.retryable)


def raise_unanswered(uri: str, what: str, error: BaseException) -> None:
    """For who reads an opened file through a library: raise Unanswered if that was the trouble, and not the content."""
    if isinstance(error, OSError) and isinstance(found := _named(what, uri, error), Unanswered):
        raise found from error


@contextmanager
def reading(uri: str, what: str) -> Iterator[None]:
    """What goes wrong while an opened file is read, as an error of ours."""
    try:
        yield
    except OSError as error:
        raise _named(what, uri, error) from error


def _info(uri: str) -> Any:
    filesystem, path = _filesystem(uri)
    try:
        return filesystem.get_file_info(path)
    except OSError as error:
        raise _trouble(uri, "cannot be looked at", error) from error


def is_file(uri: str) -> bool:
    """True for an existing file or object."""
    return bool(_info(uri).type == pafs.FileType.File)


def modified(uri: str) -> int | None:
    """When a file was written, in nanoseconds by the clock of its storage; None when it is not there."""
    found = _info(uri)
    return int(found.mtime_ns) if found.type == pafs.FileType.File else None


def list_directory(uri: str) -> list[tuple[str, bool]]:
    """Names directly below a directory and whether each is a directory; nothing when it does not exist."""
    filesystem, path = _filesystem(uri)
    try:
        found = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    except OSError as error:
        raise _trouble(uri, "cannot be listed", error) from error
    return sorted((info.base_name, info.type == pafs.FileType.Directory) for info in found)


def sizes(uris: Sequence[str]) -> list[int | None]:
    """Size in bytes of each file, None for those that are not there.

    Local files are asked one by one; in an object store a directory that holds several of them is listed once.
    """
    found: dict[str, int] = {}
    groups: dict[tuple[str, str], list[str]] = {}
    for uri in uris:
        groups.setdefault((scheme(uri), uri.rsplit("/", 1)[0]), []).append(uri)
    local = [uri for (kind, _), members in groups.items() if not kind for uri in members]
    for uri in local:
        try:
            facts = os.stat(uri)
            if stat.S_ISREG(facts.st_mode):
                found[uri] = facts.st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise Unreachable(f"{uri} cannot be looked at: {_first_line(error)}") from error

    def remote(job: tuple[str, list[str]]) -> dict[str, int]:
        directory, members = job
        filesystem, path = _filesystem(directory)
        wanted: Any = [uri.split("://", 1)[1] for uri in members]
        if len(members) >= _LISTING_PAYS:
            wanted = pafs.FileSelector(path, allow_not_found=True)
        try:
            infos = filesystem.get_file_info(wanted)
        except OSError as error:
            raise _trouble(directory, "cannot be listed", error) from error
        head = directory.split("://", 1)[0] + "://"
        return {head + info.path: info.size for info in infos if info.type == pafs.FileType.File}

    jobs = [(directory, members) for (kind, directory), members in groups.items() if kind]
    for part in parallel(remote, jobs):
        found.update(part)
    return [found.get(uri) for uri in uris]


def parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results in the order of the items; a few threads, since files wait more than they compute."""
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


def make_directory(uri: str) -> None:
    """A directory with all above it; object stores have none and need none."""
    if scheme(uri):
        return
    try:
        os.makedirs(uri, exist_ok=True)
    except OSError as error:
        raise _unwritten(uri, error) from error


def remove(uri: str) -> None:
    """Remove a file or object; one that is not there is fine."""
    filesystem, path = _filesystem(uri)
    try:
        filesystem.delete_file(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if scheme(uri) and not is_file(uri):
            return
        raise _trouble(uri, "cannot be removed", error) from error


def remove_directory(uri: str) -> None:
    """Remove an empty local directory; one that holds something stays."""
    if not scheme(uri):
        with suppress(OSError):
            os.rmdir(uri)


def remove_tree(uri: str) -> None:
    """Remove a local directory with all that lies in it; there are no directories of objects."""
    if not scheme(uri):
        shutil.rmtree(uri, ignore_errors=True)


def put(local: str, uri: str) -> None:
    """Move a finished local file to its place: all of it or nothing is there, and it stays after a power cut.

    A local file has to lie in the directory it goes to. An object appears when its upload is complete.
    """
    try:
        if not scheme(uri):
            with open(local, "rb") as written:
                os.fsync(written.fileno())
            os.replace(local, uri)
            directory = os.open(os.path.dirname(uri), os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            return
        filesystem, path = _filesystem(uri)
        with open(local, "rb") as written, filesystem.open_output_stream(path) as stream:
            while block := written.read(_BLOCK):
                stream.write(block)
        os.remove(local)
    except OSError as error:
        raise _unwritten(uri, error) from error


def settle(uris: Iterable[str]) -> None:
    """Make local files that were written without being forced to the disk stay after a power cut."""
    local = [uri for uri in uris if not scheme(uri)]

    def force(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise _unwritten(path, error) from error
        finally:
            os.close(descriptor)

    parallel(force, [*local, *sorted({os.path.dirname(uri) for uri in local})])


def write(uri: str, content: bytes, temporary: str, durable: bool = True) -> None:
    """A whole small file, as `put` does; `temporary` is a name that nobody else uses in that directory. One that is not
    durable is complete where it is there, and needs `settle` before anything names it."""
    try:
        if scheme(uri):
            filesystem, path = _filesystem(uri)
            with filesystem.open_output_stream(path) as stream:
                stream.write(content)
            return
        aside = os.path.join(os.path.dirname(uri), temporary)
        try:
            with open(aside, "wb") as output:
                output.write(content)
            if not durable:
                os.replace(aside, uri)
                return
        except OSError:
            with suppress(OSError):
                os.remove(aside)
            raise
    except OSError as error:
        raise _unwritten(uri, error) from error
    put(aside, uri)


def is_exclusive(uri: str) -> bool:
    """Whether `create` keeps two writers apart there."""
    return not scheme(uri) or (scheme(uri) == "s3" and conditional.is_conditional(uri))


def create(uri: str, content: bytes, temporary: str) -> bool:
    """A whole small file, as `write` does, unless there is one of that name already: False then.

    A store that is not exclusive is asked first and then written to, which two writers at the same instant can get
    through.
    """
    if scheme(uri):
        if is_file(uri):
            return False
        if not is_exclusive(uri):
            write(uri, content, temporary)
            return True
        made = conditional.created(uri, content)
        if made is None and not is_file(uri):
            raise Unanswered(f"{uri} cannot be written: the store does not say that it was", retryable=True)
        return read(uri, "file") == content if made is None else made
    aside = os.path.join(os.path.dirname(uri), temporary)
    try:
        with open(aside, "wb") as output:
            output.write(content)
            output.flush()
            os.fsync(output.fileno())
        try:
            os.link(aside, uri)
        except FileExistsError:
            return False
        directory = os.open(os.path.dirname(uri), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise _unwritten(uri, error) from error
    finally:
        with suppress(OSError):
            os.remove(aside)
    return True


def _unwritten(uri: str, error: OSError) -> Unreachable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return Unreachable(f"{uri} cannot be written: the disk is full", hint="make room, then run it again")
    if error.errno == errno.ENOENT and not scheme(uri):
        return Missing(f"{uri} cannot be written: its directory is not there")
    return _trouble(uri, "cannot be written", error)
