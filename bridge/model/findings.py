"""What a migration has to say about a table: one code a kind, one severity a code.

The table `Code` is the public contract: the README shows it, `--accept` names its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bridge.errors import UsageError

__all__ = ["Code", "Finding", "Severity", "acceptable"]


class Severity(Enum):
    """How much a finding matters: a loss changes no rows of a table, a blocked table is not written."""

    NOTE = "note"
    LOSS = "loss"
    BLOCKED = "blocked"


_NOTE, _LOSS, _BLOCKED = Severity.NOTE, Severity.LOSS, Severity.BLOCKED


class Code(Enum):
    """Code, severity and meaning of every finding."""

    METADATA_GUESSED = (
        "metadata-guessed",
        _NOTE,
        "no version hint: the highest numbered metadata file was taken",
    )
    LOCATION_ELSEWHERE = (
        "location-elsewhere",
        _NOTE,
        "the metadata was found in another place than the table says it is in; its files are taken from where it says",
    )
    SIZE_CORRECTED = ("size-corrected", _NOTE, "files differ in size from their manifest and were re-read")
    FILES_UNCHECKED = (
        "files-unchecked",
        _NOTE,
        "existence, size and footers of the files were not looked at",
    )
    TYPE_MAPPED = ("type-mapped", _NOTE, "a type has no name of its own in the target; its values are kept")
    TYPE_READERS = ("type-readers", _NOTE, "some engines do not know a type that the table has, or misread it")
    DEFAULT_READERS = (
        "default-readers",
        _NOTE,
        "some engines do not apply the default of a younger column when they filter",
    )
    COLUMN_ORDER = (
        "column-order",
        _NOTE,
        "columns are ordered unlike their ids: a later RENAME moves the column",
    )
    NESTED_REQUIRED = ("nested-required", _NOTE, "NOT NULL inside a nested column is recorded, not enforced")
    NAMED_REF = ("named-ref", _NOTE, "a branch or tag on the main line is kept as a note in a table tag")
    TEMPORAL_PARTITION = (
        "temporal-partition",
        _NOTE,
        "temporal partitions are written as calendar parts, in UTC",
    )
    SORT_KEY = (
        "sort-key",
        _NOTE,
        "files that are written are sorted by fewer keys than the lake has for the table, or not at all",
    )
    FILE_TWICE = (
        "file-twice",
        _NOTE,
        "data files hold a column that is younger than they are: they end in the lake and begin anew with it",
    )
    DELETES_UNDONE = (
        "deletes-undone",
        _NOTE,
        "deleted rows came back in the history: their data files are registered once before and once after",
    )
    LINEAGE_NUMBERS = (
        "lineage-numbers",
        _NOTE,
        "files hold the source's last-updated numbers, which DuckLake takes for its own when it merges them",
    )
    READS_FILES = (
        "reads-files",
        _NOTE,
        "a view or macro reads files by their paths: it works where those files are found",
    )
    SEARCH_PATH = (
        "search-path",
        _NOTE,
        "a view names things of another schema without it: as at the source, it works where the lake is the current "
        "catalog (USE)",
    )
    MACRO_UNTRIED = (
        "macro-untried",
        _NOTE,
        "calls of a macro with NULL do not bind at the source, so that it could not be tried in the lake",
    )
    PROPERTIES = ("properties", _NOTE, "properties without a counterpart are kept as table tags")

    METADATA_RETURNED = (
        "metadata-returned",
        _NOTE,
        "the metadata that the catalog returned was taken instead of the metadata file",
    )
    OTHER_FORMAT = ("other-format", _NOTE, "a table of another format in the source's catalog is not carried")
    PUBLISHED_STAYS = (
        "published-stays",
        _NOTE,
        "a table that was published before is gone or renamed at the source; it stays what it was",
    )
    HISTORY_REBUILT = (
        "history-rebuilt",
        _NOTE,
        "published snapshots are written anew under their numbers, as the source shows them now",
    )
    EMPTY_NAMESPACE = ("empty-namespace", _NOTE, "a namespace without tables is not created")

    TYPE_NARROWED = (
        "type-narrowed",
        _LOSS,
        "values of a type are cut: as --type-map asked, or 128 bits as DuckDB writes them",
    )
    TYPE_SHAPE = (
        "type-shape",
        _LOSS,
        "a type becomes another one that keeps its values, but not all that it says of them",
    )
    GENERATED_COLUMN = ("generated-column", _LOSS, "a generated column becomes an ordinary one that holds its values")
    USER_TYPE = ("user-type", _LOSS, "a user-defined type is not carried; its columns get the type it stands for")
    PARTITION_BUCKET = ("partition-bucket", _LOSS, "bucket partitioning is not declared over files in place")
    PARTITION_LAYOUT = (
        "partition-layout",
        _LOSS,
        "a partition key has no counterpart; it is kept as a table tag",
    )
    SORT_ORDER = ("sort-order", _LOSS, "a sort key has no counterpart; it is kept as a table tag")
    REF_DROPPED = ("ref-dropped", _LOSS, "a branch or tag off the main line is not carried")
    STAGED_DROPPED = ("staged-dropped", _LOSS, "snapshots that never were on the main line are not carried")
    HISTORY_TRIMMED = ("history-trimmed", _LOSS, "older snapshots cannot be carried")
    HISTORY_CURRENT = ("history-current", _LOSS, "only the current snapshot was asked for")
    HISTORY_TIMES_MOVED = ("history-times-moved", _LOSS, "snapshot times follow what the lake already holds")
    HISTORY_DIVERGED = (
        "history-diverged",
        _NOTE,
        "the source went another way than the target, or forgot its state: the target follows by the difference",
    )
    HISTORY_ROLLED_BACK = ("history-rolled-back", _LOSS, "the time before a rollback is not reproduced")
    NESTED_DOC = ("nested-doc", _LOSS, "comments on nested fields are stored, DuckDB does not show them")
    NOT_ENFORCED = ("not-enforced", _LOSS, "identifier fields are kept as a table tag")
    STATISTICS_FILES = ("statistics-files", _LOSS, "statistics files (sketches) are not carried")
    DEFAULT_LOST = ("default-lost", _LOSS, "a write default cannot be expressed in the target")
    VIEW_NOT_CARRIED = ("view-not-carried", _LOSS, "a view of the source's catalog is not carried")
    MACRO_NOT_CARRIED = ("macro-not-carried", _LOSS, "a macro cannot be stored in a lake, or does not bind there")
    OBJECT_EXISTS = (
        "object-exists",
        _LOSS,
        "the lake holds something else under the name of a view or macro; it is left as it is",
    )
    OBJECT_TYPES = (
        "object-types",
        _LOSS,
        "a view or macro reads columns, or gives some, that are of another type in the lake: order and comparisons "
        "can differ, so that it is left out unless this is accepted",
    )
    CATALOG_ANSWERS = (
        "catalog-answers",
        _LOSS,
        "a view, macro or default asks for row ids, for the catalog's name or for what it holds: those are others in a "
        "lake, so that it is left out unless this is accepted",
    )
    COMMENT_LOST = ("comment-lost", _LOSS, "a comment on what DuckLake keeps no comments on")
    NEXTVAL_DEFAULT = ("nextval-default", _LOSS, "a column's default drew from a sequence")
    SEQUENCE = ("sequence", _LOSS, "DuckLake has no sequences")
    INDEX = ("index", _LOSS, "DuckLake has no indexes")
    PRIMARY_KEY = ("primary-key", _LOSS, "a primary key is not enforced any more; NOT NULL is")
    FOREIGN_KEY = ("foreign-key", _LOSS, "a foreign key is not enforced any more")
    UNIQUE = ("unique", _LOSS, "a UNIQUE constraint is not enforced any more")
    CHECK = ("check", _LOSS, "a CHECK constraint is not enforced any more")
    COLLATION = ("collation", _LOSS, "text is compared byte by byte, not under the column's collation")
    NAMESPACE_PROPERTIES = ("namespace-properties", _LOSS, "properties of a namespace are not carried")
    SOURCE_UNPROTECTED = (
        "source-unprotected",
        _LOSS,
        "the lake's own maintenance could schedule source files for deletion",
    )

    METADATA_UNREADABLE = ("metadata-unreadable", _BLOCKED, "table metadata is damaged or not what it claims")
    TABLE_UNREADABLE = ("table-unreadable", _BLOCKED, "one of several tables cannot be opened")
    TABLE_GONE = ("table-gone", _BLOCKED, "a table was dropped at the source during the run")
    NAMESPACE_UNREADABLE = (
        "namespace-unreadable",
        _BLOCKED,
        "the tables of a namespace cannot be listed; those that can are written",
    )
    MANIFEST_UNREADABLE = (
        "manifest-unreadable",
        _BLOCKED,
        "a manifest or manifest list is missing or damaged",
    )
    FORMAT_VERSION = ("format-version", _BLOCKED, "a format version we do not know")
    TABLE_ENCRYPTED = ("table-encrypted", _BLOCKED, "the table or its files are encrypted")
    CASE_COLLISION = ("case-collision", _BLOCKED, "names differ only in case; the target cannot hold both")
    NAME_UNSUPPORTED = ("name-unsupported", _BLOCKED, "a name that the target cannot hold")
    NO_COLUMNS = ("no-columns", _BLOCKED, "a table or struct without fields")
    TYPE_UNSUPPORTED = ("type-unsupported", _BLOCKED, "a type without a faithful counterpart")
    TYPE_RANGE = ("type-range", _BLOCKED, "values do not fit the type that --type-map asks for")
    OWN_FORMAT = ("own-format", _BLOCKED, "rows that lie in a database's own format have to be copied")
    NESTED_DEFAULT = ("nested-default", _BLOCKED, "a default on a struct, list or map cannot be stored")
    NESTED_ID_ORDER = (
        "nested-id-order",
        _BLOCKED,
        "field ids run against their nesting; the catalog could not load",
    )
    EQUALITY_DELETES = ("equality-deletes", _BLOCKED, "equality delete files name values, not rows")
    FILE_FORMAT = ("file-format", _BLOCKED, "data files that are not Parquet")
    NO_FIELD_IDS = (
        "no-field-ids",
        _BLOCKED,
        "data files without field ids whose columns the name mapping does not tell for certain",
    )
    NESTED_LAYOUT = (
        "nested-layout",
        _BLOCKED,
        "a list or map is stored in groups that DuckDB does not read rightly by name",
    )
    PARTITION_COLUMN_ABSENT = (
        "partition-column-absent",
        _BLOCKED,
        "a partition column is not in the file, and the file's path does not give its value",
    )
    PARTITION_VALUE = (
        "partition-value",
        _BLOCKED,
        "a partition column holds other values than the partition that the source reads for it",
    )
    PHYSICAL_TYPE = (
        "physical-type",
        _BLOCKED,
        "a file stores a column as a type that would read differently",
    )
    NAN_OUTSIDE_BOUNDS = (
        "nan-outside-bounds",
        _BLOCKED,
        "a float column holds NaN that the file's own statistics hide",
    )
    UNCHECKED_DOUBT = (
        "unchecked-doubt",
        _BLOCKED,
        "with --check-files none, the metadata leaves open what only the files can tell",
        True,
    )
    FILE_MISSING = ("file-missing", _BLOCKED, "a data file is gone")
    FILE_UNREADABLE = ("file-unreadable", _BLOCKED, "a data file is damaged or is not Parquet")
    FILE_SIZE = ("file-size", _BLOCKED, "a data file is not the one its manifest describes")
    FILE_RETURNS = (
        "file-returns",
        _BLOCKED,
        "a data file left the table and came back; a lake that owns it would delete it when the first time expires",
    )
    FILE_LISTED_TWICE = ("file-listed-twice", _BLOCKED, "one data file is live twice in one snapshot")
    INLINED_ROWS = ("inlined-rows", _BLOCKED, "rows lie in the lake's catalog and not in a file")
    FILE_ENCRYPTED = ("file-encrypted", _BLOCKED, "data files are encrypted in a way that only DuckDB reads")
    MERGED_HISTORY = (
        "merged-history",
        _BLOCKED,
        "files hold so many rows of so many snapshots that the older snapshots cannot be shown",
    )
    ROW_COUNT = ("row-count", _BLOCKED, "the manifests do not add up to the rows that the snapshot claims")
    ROW_SUMMARY = (
        "row-summary",
        _BLOCKED,
        "the live files do not hold as many rows as the snapshot's summary says",
        True,
    )
    PATH_SCHEME = ("path-scheme", _BLOCKED, "DuckDB cannot open paths of this scheme")
    TARGET_CONFLICT = ("target-conflict", _BLOCKED, "the table changed in the target, or its source went another way")
    TARGET_EXISTS = ("target-exists", _BLOCKED, "the target name is taken")
    TARGET_ENCRYPTED = ("target-encrypted", _BLOCKED, "an encrypted lake takes no plain files")
    CATALOG_FORMAT_3 = (
        "catalog-format-3",
        _BLOCKED,
        "the Iceberg catalog takes no table of format 3, which this one needs",
    )
    DATA_PATH_OVERLAP = (
        "data-path-overlap",
        _BLOCKED,
        "the lake's data path and the source lie in one another",
    )

    def __init__(self, text: str, severity: Severity, meaning: str, acceptable: bool = False) -> None:
        self.text = text
        self.severity = severity
        self.meaning = meaning
        self.acceptable = acceptable or severity is Severity.LOSS

    @property
    def rewritable(self) -> bool:
        """Whether rewriting the files that a problem names takes it away."""
        return self in _REWRITABLE


def acceptable(text: str) -> Code:
    """The finding that --accept names; UsageError when there is none, or when it would change answers."""
    code = next((each for each in Code if each.text == text), None)
    if code is None:
        raise UsageError(f"--accept {text}: there is no such code", hint="the README lists them")
    if not code.acceptable:
        raise UsageError(f"--accept {text}: this would change answers and cannot be accepted", hint=code.meaning)
    return code


_REWRITABLE = frozenset(
    {
        Code.OWN_FORMAT,
        Code.FILE_FORMAT,
        Code.NO_FIELD_IDS,
        Code.NESTED_LAYOUT,
        Code.PARTITION_COLUMN_ABSENT,
        Code.PARTITION_VALUE,
        Code.PHYSICAL_TYPE,
        Code.NAN_OUTSIDE_BOUNDS,
        Code.CASE_COLLISION,
        Code.INLINED_ROWS,
        Code.FILE_ENCRYPTED,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say: what it is about, what was found, and which files (the first few) show it."""

    code: Code
    subject: str
    detail: str
    hint: str = ""
    files: tuple[str, ...] = ()
    file_count: int = 0
    on_files: bool = False
    """Said of a definition, it is about every data file of the table, and gone when these are rewritten."""
    text: str = ""
    """The SQL that defines what this is about, whole."""

    @property
    def severity(self) -> Severity:
        return self.code.severity

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.subject}: {self.detail}{hint}"
