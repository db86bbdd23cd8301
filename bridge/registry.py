"""Which module serves a format; loaded when its locator is met, so that nothing heavy is imported before."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

from bridge.errors import UsageError
from bridge.locators import Locator
from bridge.model.options import Options
from bridge.ports import Holder, Lake, RowEngine, Source, Target

__all__ = [
    "engine",
    "extensions",
    "open_engine",
    "open_holder",
    "open_lake",
    "open_source",
    "open_target",
    "readers",
    "settings_fault",
    "type_choices",
]

_SOURCES = {
    "iceberg": "converters.iceberg.reader:open_source",
    "iceberg-catalog": "converters.iceberg.catalog:open_catalog",
    "duckdb": "converters.duckdb_file.reader:open_source",
    "ducklake": "converters.ducklake.reader:open_source",
}
_CONFIGURED = {"source": ("iceberg-catalog:NAME", "duckdb:FILE"), "target": ("iceberg-catalog:NAME",)}
"""What takes settings, by its role."""
_TARGETS = {
    "ducklake": "converters.ducklake.writer:open_target",
    "iceberg": "converters.iceberg.writer:open_target",
    "iceberg-catalog": "converters.iceberg.writer:open_catalog_target",
}
_LAKES = {"ducklake": "converters.ducklake.lake:open_lake"}
_HOLDERS = {
    **_LAKES,
    "iceberg": "converters.iceberg.giving_back:open_tables",
    "iceberg-catalog": "converters.iceberg.giving_back:open_catalog_tables",
}
_ENGINES = {
    "duckdb": "converters.duckdb_file.engine:open_engine",
    "ducklake": "converters.ducklake.engine:open_engine",
}
"""By the source's format; Spark reads every other."""
_EXTRAS = {"pyspark": "spark", "deltalake": "delta", "thrift": "hive", "psycopg": "postgres"}


def _load(entries: dict[str, str], locator: Locator, role: str) -> Any:
    entry = entries.get(locator.format)
    if entry is None:
        raise UsageError(
            f"{locator}: {locator.format} is not built yet as a {role}",
            hint=f"built: {', '.join(sorted(entries))}",
        )
    return _named(entry, locator.format)


def _named(entry: str, what: str) -> Any:
    module, _, name = entry.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(
            f"{what} needs the package {error.name}", hint=f"pip install 'ducklake-bridge[{extra}]'"
        ) from error


def settings_fault(role: str, locator: Locator, settings: Sequence[tuple[str, str]]) -> UsageError | None:
    """What is wrong with settings of a source or target (`role`): that it takes none."""
    if not settings or locator.format in {each.partition(":")[0] for each in _CONFIGURED[role]}:
        return None
    return UsageError(f"--{role}-option is for {' and '.join(_CONFIGURED[role])}", hint="leave it out")


def _opened(entries: dict[str, str], locator: Locator, role: str, options: Options) -> Any:
    found = _load(entries, locator, role)
    fault = settings_fault(role, locator, options.source_options if role == "source" else options.target_options)
    if fault is not None:
        raise fault
    return found(locator.rest, options)


def open_source(locator: Locator, options: Options) -> Source:
    """The source behind a locator."""
    return cast(Source, _opened(_SOURCES, locator, "source", options))


def open_target(locator: Locator, options: Options) -> Target:
    """The target behind a locator."""
    return cast(Target, _opened(_TARGETS, locator, "target", options))


def open_holder(locator: Locator, options: Options) -> Holder:
    """The tables of ours behind a locator, for releasing and adopting them."""
    return cast(Holder, _opened(_HOLDERS, locator, "target", options))


def open_lake(locator: Locator, options: Options) -> Lake:
    """The lake behind a locator, for looking at it."""
    return cast(Lake, _load(_LAKES, locator, "lake")(locator.rest, options))


def open_engine(source: Locator, options: Options, staging: str) -> RowEngine:
    """The engine that rewrites files of a source; nothing is started before it has work."""
    if (entry := _ENGINES.get(source.format)) is not None:
        return cast(RowEngine, _named(entry, "rewriting")(source.rest, options, staging))
    return cast(RowEngine, _named("converters.spark.wiring:open_engine", "rewriting")(options, staging))


def type_choices() -> dict[str, tuple[str, ...]]:
    """Types without a counterpart in some target, and what --type-map may make of them."""
    modules = ("converters.ducklake.types", "converters.duckdb_file.types")
    return {name: to for module in modules for name, to in import_module(module).TYPE_CHOICES.items()}


def readers() -> tuple[str, ...]:
    """The engines that --readers may name."""
    return tuple(import_module("converters.iceberg.type_matrix").READERS)


def extensions() -> dict[str, tuple[bool, str, str]]:
    """DuckDB's extensions: whether each loads, what was found, and the line that brings it."""
    found: dict[str, tuple[bool, str, str]] = import_module("converters.ducklake.extensions").examine()
    return found


def engine() -> tuple[bool, str, str]:
    """Whether Spark could start here, what was found, and the line that brings what is missing."""
    found: tuple[bool, str, str] = import_module("converters.spark.session").examine()
    return found
