"""Rounds as a file of Prometheus metrics, for the textfile collector of a node exporter.

Counters go on from what the file holds, so that runs of cron count as one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.errors import Unreachable, UsageError
from bridge.mirroring.pair import Round, State

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["Metrics"]

_PREFIX = "ducklake_bridge_mirror_"
_TABLE, _PAIR = ("pair", "table"), ("pair",)
_STATE, _OUTCOME = (*_TABLE, "state"), (*_PAIR, "outcome")
_SERIES = {
    "lag_commits": ("gauge", _TABLE, "Commits of the source that the target does not hold yet."),
    "lag_seconds": ("gauge", _TABLE, "Age of the oldest commit that the target does not hold, when last looked at."),
    "table_state": ("gauge", _STATE, "1 for the state that the last round left a table in."),
    "last_success_timestamp_seconds": ("gauge", _TABLE, "When a round last left a table in order."),
    "last_round_timestamp_seconds": ("gauge", _PAIR, "When the last round ended."),
    "round_seconds": ("gauge", _PAIR, "How long the last round took."),
    "commits_applied_total": ("counter", _TABLE, "Commits brought to the target."),
    "files_registered_total": ("counter", _TABLE, "Data files registered in the target."),
    "bytes_total": ("counter", _TABLE, "Bytes of the data files registered in the target."),
    "rounds_total": ("counter", _OUTCOME, "Rounds by what came of them."),
}
_LOOKED_AT = ("lag_commits", "lag_seconds", "table_state")
_OUTCOMES = {0: "ok", 2: "usage", 3: "blocked", 4: "unverified", 5: "conflict", 6: "unreachable"}
_IN_ORDER = frozenset({State.CURRENT, State.APPLIED, State.DROPPED})

Values = dict[tuple[str, ...], float]


class Metrics:
    """The metrics of all pairs; every round writes the file anew, whole or not at all."""

    def __init__(self, path: str, blot: Callable[[str], str] = str) -> None:
        try:
            import prometheus_client
        except ModuleNotFoundError as error:
            hint = "pip install 'ducklake-bridge[mirror]'"
            raise UsageError("--metrics-file needs the package prometheus-client", hint=hint) from error
        self._generate = prometheus_client.generate_latest
        self._path = os.path.abspath(path)
        self._blot = blot
        self._lock = threading.Lock()
        self._values: dict[str, Values] = {name: {} for name in _SERIES}
        folder = os.path.dirname(self._path)
        # what is no file, such as /dev/null, would be read to its end and then put another in the place of
        whole = os.path.isfile(self._path) or not os.path.lexists(self._path)
        if not whole or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            raise UsageError(f"--metrics-file {path} cannot be written", hint="give a file in a directory that can be")
        self._resume()

    def told(self, each: Round) -> None:
        """Count a round and write the file; Unreachable when that fails."""
        with self._lock:
            self._count(each)
            self._write()

    def collect(self) -> Iterator[Metric]:
        """What Prometheus' own writer asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, (kind, labels, meaning) in _SERIES.items():
            made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = made(_PREFIX + name, meaning, labels=labels)
            for values, number in sorted(self._values[name].items()):
                family.add_metric(values, number)
            yield family

    def _count(self, each: Round) -> None:
        pair, ended = self._blot(each.pair.label), each.began + each.seconds
        outcome = _OUTCOMES.get(each.exit_code, "error")
        self._add("rounds_total", (pair, outcome), 1)
        self._values["round_seconds"][pair,] = each.seconds
        self._values["last_round_timestamp_seconds"][pair,] = ended
        if each.error is None:  # a table that is gone leaves no number behind
            for name in _LOOKED_AT:
                self._values[name] = {key: value for key, value in self._values[name].items() if key[0] != pair}
        keyed = [((pair, self._blot(str(table.source))), table) for table in (*each.tables, *each.aside)]
        for key, table in keyed:
            if table.behind is not None and table.behind_seconds is not None:  # what is not known has no number
                self._values["lag_commits"][key] = table.behind
                self._values["lag_seconds"][key] = table.behind_seconds
            for state in State:
                self._values["table_state"][(*key, state.value)] = float(state is table.state)
        for key, table in keyed[: len(each.tables)]:
            self._add("commits_applied_total", key, table.commits)
            self._add("files_registered_total", key, table.files)
            self._add("bytes_total", key, table.bytes)
            if table.state in _IN_ORDER:
                self._values["last_success_timestamp_seconds"][key] = ended
        self._since(pair, [key for key, _ in keyed], each, ended)

    def _since(self, pair: str, tables: list[tuple[str, str]], each: Round, ended: float) -> None:
        """A series for every table that a round knew of, and one of no table for a pair of which none is known: 0 where
        no round has succeeded yet, so that no silence goes unnoticed."""
        values = self._values["last_success_timestamp_seconds"]
        known = [key for key in values if key[0] == pair and key[1]]
        if each.error is None:  # a table that is gone is waited for no more
            for key in (*known, (pair, "")):
                if key not in tables:
                    values.pop(key, None)
            known = [*tables]
            if not known:
                values[pair, ""] = ended
        for key in known or [(pair, "")]:
            values.setdefault(key, 0.0)

    def _add(self, name: str, key: tuple[str, ...], more: float) -> None:
        self._values[name][key] = self._values[name].get(key, 0) + more

    def _resume(self) -> None:
        """Take up the numbers of an earlier process; a file that is not ours to read is written anew."""
        from prometheus_client.parser import text_string_to_metric_families

        try:
            families = list(text_string_to_metric_families(Path(self._path).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return
        for sample in (each for family in families for each in family.samples):
            name = sample.name.removeprefix(_PREFIX)
            labels = _SERIES[name][1] if name in _SERIES else ()
            if set(labels) == set(sample.labels) and labels:
                self._values[name][tuple(sample.labels[each] for each in labels)] = sample.value

    def _write(self) -> None:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        beside = f"{self._path}.{os.getpid()}.part"
        try:
            with open(beside, "wb") as file:
                file.write(self._generate(registry))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._path)
        except OSError as error:
            raise Unreachable(f"the metrics cannot be written to {self._path}: {error.strerror}") from error
