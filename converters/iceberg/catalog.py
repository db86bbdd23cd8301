"""A catalog as a source: tables by name, what lies beside them, and each table's metadata by our own reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridge.errors import Missing, Unreachable, UsageError
from bridge.model.findings import Code, Finding
from bridge.model.objects import Objects
from bridge.model.options import Options
from bridge.model.paths import apply_map
from bridge.model.table import TableName
from bridge.ports import Notice
from converters.iceberg import metadata
from converters.iceberg.catalogs import Catalog, Namespace
from converters.iceberg.catalogs.settings import Settings, read_settings
from converters.iceberg.reader import IcebergSourceTable, up_to

__all__ = ["CatalogSource", "open_catalog"]


class CatalogSource:
    """The tables of a catalog, as it listed them once."""

    concurrent = True

    def __init__(self, catalog: Catalog, settings: Settings, options: Options) -> None:
        self._catalog = catalog
        self._settings = settings
        self._options = options
        listed = list(catalog.namespaces())
        self._names = sorted({TableName(each.levels, name) for each in listed for name in each.tables})
        self._notices = [notice for each in listed for notice in _notices(each, listed)]
        if self._names or options.follow:
            return
        if faults := [each.finding for each in self._notices if each.finding.code is Code.NAMESPACE_UNREADABLE]:
            raise Unreachable(f"{settings.shown}: no namespace could be listed: {faults[0]}")
        beside = ", ".join(f"{each.finding.subject} ({each.finding.code.text})" for each in self._notices[:5])
        raise UsageError(f"{settings.shown} holds no Iceberg table", hint=f"it has {beside or 'nothing at all'}")

    @property
    def configured(self) -> str:
        """Where the catalog is, since another configuration may give the name to another one."""
        warehouse = str(self._settings.get("warehouse", ""))
        return f"({self._settings.shown}{', warehouse ' if warehouse else ''}{self._settings.public(warehouse)})"

    def tables(self) -> Sequence[TableName]:
        """Every table of every namespace."""
        return self._names

    def objects(self) -> Objects:
        """None that a lake could hold; views of a catalog are noticed."""
        return Objects()

    def noticed(self) -> Sequence[Notice]:
        """Views, tables of other formats, namespaces and what could not be listed."""
        return self._notices

    def holds(self, name: TableName) -> bool:
        """Whether the catalog still knows the table."""
        try:
            self._catalog.locate(name)
        except Missing:
            return False
        return True

    def open(self, name: TableName) -> IcebergSourceTable:
        """Ask where the metadata is now, and read it there; what the catalog itself returned stands in for a file that
        cannot be read."""
        located = self._catalog.locate(name)
        place = apply_map(located.metadata, self._options.path_map)
        content: bytes | None = None
        try:
            if not place:
                raise Unreachable(f"{self._settings.shown} tells no metadata file")
            source = metadata.load(name, place, self._options.path_map)
        except Unreachable as error:
            if located.returned is None:
                raise
            content = located.returned
            said = Finding(Code.METADATA_RETURNED, str(name), f"taken from the catalog: {error.message}")
            stated = place or f"{self._settings.name}/{name}/returned.metadata.json"
            source = metadata.decode(name, stated, content, self._options.path_map, (said,))
        if self._options.at is not None:
            source = up_to(source, self._options.at)
        return IcebergSourceTable(source, self._options, content)


def _notices(here: Namespace, listed: Sequence[Namespace]) -> Iterator[Notice]:
    whole = TableName(here.levels, "")
    shown = ".".join(here.levels) or "the top level"

    def of_namespace(code: Code, detail: str, hint: str = "") -> Notice:
        return Notice(whole, Finding(code, shown, detail, hint))

    for view in here.views:
        name = TableName(here.levels, view)
        yield Notice(name, Finding(Code.VIEW_NOT_CARRIED, str(name), "a view stays with the source"))
    for other, kind in here.others:
        name = TableName(here.levels, other)
        yield Notice(name, Finding(Code.OTHER_FORMAT, str(name), f"no Iceberg table but {kind}"))
    if set(here.properties) - {"location"}:  # where the source puts its files means nothing in the lake
        yield of_namespace(Code.NAMESPACE_PROPERTIES, f"not carried: {', '.join(sorted(here.properties))}")
    if here.fault:
        yield of_namespace(Code.NAMESPACE_UNREADABLE, here.fault, "--exclude leaves it out")
    inside = len(here.levels)
    deeper = any(each.levels[:inside] == here.levels and len(each.levels) > inside for each in listed)
    if not (here.tables or here.views or here.others or here.fault or deeper):
        yield of_namespace(Code.EMPTY_NAMESPACE, "it holds nothing")


def _reader(settings: Settings) -> Catalog:
    kind = str(settings.get("type", "")).lower()
    uri = settings.uri
    if not kind and "py-catalog-impl" not in settings:
        head = uri.partition(":")[0].partition("+")[0]
        kinds = {"http": "rest", "https": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}
        if head not in kinds:
            raise UsageError(
                f"catalog {settings.name}: its uri does not tell what kind it is",
                hint="say type=rest, sql or hive beside it",
            )
        kind = kinds[head]
    if kind in ("rest", "sql", "hive") and not uri:
        raise UsageError(f"catalog {settings.name} has no uri", hint="a catalog of this type needs one")
    if kind == "rest":
        from converters.iceberg.catalogs.rest import RestReader

        return RestReader(settings)
    if kind == "sql":
        from converters.iceberg.catalogs.sql import SqlReader

        return SqlReader(settings)
    if kind == "hive":
        from converters.iceberg.catalogs.hive import HiveReader

        return HiveReader(settings)
    from converters.iceberg.catalogs.other import OtherReader

    return OtherReader(settings)


def open_catalog(rest: str, options: Options) -> CatalogSource:
    """The source behind `iceberg-catalog:NAME`."""
    settings = read_settings(rest, options.source_options)
    return CatalogSource(_reader(settings), settings, options)
