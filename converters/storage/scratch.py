"""A directory of this process for what it needs only while it runs; those of killed processes are removed."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["scratch"]

_PREFIX = "ducklake-bridge-scratch-"
_YOUNG = 600.0
"""Seconds in which a directory may not be locked yet by who made it."""
_lock = threading.Lock()
_made: dict[int, str] = {}


def scratch() -> str:
    """The directory, locked while the process lives."""
    with _lock:
        own = os.getpid()
        if not os.path.isdir(_made.get(own, "")):  # or somebody cleaned up
            _sweep(Path(tempfile.gettempdir()))
            path = tempfile.mkdtemp(prefix=_PREFIX)
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
            _made[own] = path
            atexit.register(_end, own, path)
        return _made[own]


def _end(owner: int, path: str) -> None:
    if os.getpid() == owner:  # not in a fork, which has the lock too
        shutil.rmtree(path, ignore_errors=True)


def _sweep(directory: Path) -> None:
    for each in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is somebody else's, or gone
            if time.time() - each.stat().st_mtime < _YOUNG:
                continue
            handle = os.open(each, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(handle)
