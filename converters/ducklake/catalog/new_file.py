"""A catalog file that is not there yet: built beside its place, and linked there when it is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.errors import Overtaken, Unreachable
from converters.ducklake.catalog.session import Place, Session, session

__all__ = ["new_file", "remove_abandoned"]

_MARK = ".bridge-"
"""Between the name of the catalog and the number of the process that builds it."""


@contextmanager
def new_file(place: Place) -> Iterator[Session]:
    """A session whose catalog is there at the end, whole, or not at all."""
    building = Place(place.backend, f"{place.path}{_MARK}{os.getpid()}")
    linked, opened = False, None
    try:
        with session(building, create=True) as opened:
            yield opened
        if os.path.exists(f"{building.path}.wal"):
            raise Unreachable(f"{building.path} could not be written completely", hint="check the free disk space")
        _sync(building.path)
        try:
            os.link(building.path, place.path)
            linked = True
        except FileExistsError as error:
            raise Overtaken(f"{place.path} was created meanwhile", hint="run it again") from error
        except OSError as error:
            raise Unreachable(f"{place.path} cannot be created: {error.strerror}") from error
    finally:
        _remove(building.path)
        if opened is not None and not linked:
            opened.remove_files()
    _sync(os.path.dirname(place.path))


def remove_abandoned(place: Place) -> None:
    """Remove what killed runs built beside a catalog."""
    directory, name = os.path.split(place.path)
    for each in os.listdir(directory):
        head, mark, pid = each.rpartition(_MARK)
        if mark and head == name and pid.isdigit() and not _alive(int(pid)):
            _remove(os.path.join(directory, each))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: str) -> None:
    for each in (path, f"{path}.wal", f"{path}-journal", f"{path}-wal", f"{path}-shm"):
        if os.path.exists(each):
            os.remove(each)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
