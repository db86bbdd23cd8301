"""What `status` says, held against the round that comes next."""

from __future__ import annotations

import time

from bridge.cli.standing import exit_code
from bridge.mirroring.pair import Pair, Round
from bridge.mirroring.rounds import catch_up
from bridge.mirroring.status import Standing, status
from bridge.ports import Silent

__all__ = ["foretold"]


def foretold(pair: Pair) -> Round:
    """A round that does what `status` said just before, to the commit, the file and the byte."""
    said = status(pair.source, pair.target, pair.options, now=time.time())
    made = catch_up(pair, Silent())
    assert made.error is None and exit_code(said) == made.exit_code, (said, made)
    for each in said:
        outcomes = [found for found in made.tables if found.source == each.source]
        if each.standing is Standing.DROPPED:
            assert not sum(found.commits for found in outcomes), (each, outcomes)
        elif each.exit_code:
            assert each.behind == outcomes[-1].behind, (each, outcomes)
        else:
            brought = [(found.commits, found.files, found.bytes) for found in outcomes]
            commits, files, size = map(sum, zip(*brought, strict=True))
            # what the columns become may be a snapshot of its own
            assert each.behind in (commits, commits - 1) and each.pending_files == files, (each, outcomes)
            assert each.pending_bytes in (size, None), (each, outcomes)
    return made
