"""Is a DataFrame nothing but columns of Parquet files? Then its feed may read them without the JVM.

Spark's own plan is asked, and Spark's own file partitions are taken: the same rows, in the same partitions and in the
same order. Whatever is not known to give the same values is left to Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tfos_magic.feed.task.feed_partition import RESULT_SCHEMA, FeedJob
from tfos_magic.feed.task.feed_splits import UNLIKE, Scan, Unlike, check_file, check_splits, feed_splits
from tfos_magic.files.parquet import ParquetSplit
from tfos_magic.spark.session import is_connect

log = logging.getLogger("tfos_magic.cluster")

SWITCH = "spark.tfos.directScan"
"""Setting of the session: ``false`` leaves all reading to Spark."""
MOST_SPLITS = 20_000
"""Beyond these, asking for them takes longer than reading in place saves."""

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_DATASOURCES = "org.apache.spark.sql.execution.datasources."
_PLAIN = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "varchar", "char"}
)
_OPTIONS = frozenset(
    {
        "path",
        "paths",
        "basepath",
        "mergeschema",
        "pathglobfilter",
        "recursivefilelookup",
        "modifiedbefore",
        "modifiedafter",
        "compression",
        "serialization.format",
    }
)
# Each of these, where it is on, makes Spark leave out files or take columns in a way of its own.
_SETTINGS = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
)


@dataclass(frozen=True)
class _Column:
    """A column of the relation: its name there and its Spark type."""

    name: str
    type: Any


class _NotPlain(Exception):
    """Why Spark has to read a DataFrame."""


def find_scan(df: Any, names: list[str]) -> Scan | None:
    """The files, columns and partitions that Spark would read for ``df``, whose columns are fed as ``names``.

    None where the plan is more than a projection to columns of one Parquet relation (a filter, a limit, a cached
    DataFrame, a join, a view with an expression), where a column is of a partitioned folder's name, of another type
    than booleans, whole numbers, floats, text, bytes and arrays of those, where files may be left out, and in a Connect
    session, which shows no plan. The footer of one file is read here; tasks look at those they read.
    """
    if is_connect(df.sparkSession):
        return None
    try:
        return _scan(df, names)
    except (_NotPlain, Unlike) as reason:
        log.debug("Spark reads this DataFrame: %s", reason)
    except Exception as reason:  # py4j's, where Spark's classes are not those that this module knows
        if not type(reason).__module__.startswith("py4j"):
            raise
        log.debug("Spark reads this DataFrame, because its plan is unreadable: %s", reason)
    return None


def feed_scan(spark: Any, job: FeedJob, scan: Scan) -> list[Any] | None:
    """Run the feed job whose tasks read the files; gives its result rows, None where Spark had better read them.

    What was sent until then counts for nothing where the partitions that count are named at the end. Rows of a stream
    are used as they come, so all files are looked at before the first row is sent.
    """
    count = len(scan.partitions)

    def collect(task: Any) -> list[Any]:
        return list(spark.range(0, count, 1, count).mapInArrow(task, RESULT_SCHEMA).collect())

    if job.schema and collect(partial(check_splits, scan)):
        return None
    rows = collect(partial(feed_splits, job, scan))
    unlike = [row.error for row in rows if row.kind == UNLIKE]
    if unlike:
        log.info("Spark reads this DataFrame after all: %s", unlike[0])
    return None if unlike else rows


def _scan(df: Any, names: list[str]) -> Scan:
    from pyspark.sql.pandas.types import to_arrow_type

    spark = df.sparkSession
    if spark.conf.get(SWITCH, "true").lower() == "false":
        raise _NotPlain(f"{SWITCH} is false")
    for setting in _SETTINGS:
        if spark.conf.get(setting, "false").lower() == "true":
            raise _NotPlain(f"{setting} is true")
    execution = df._jdf.queryExecution()
    columns = _columns(execution.optimizedPlan(), [field.dataType for field in df.schema.fields])
    schema = pa.schema([pa.field(column.name, to_arrow_type(column.type)) for column in columns])
    exact = spark.conf.get("spark.sql.caseSensitive", "false").lower() == "true"
    scan = Scan(schema, tuple(names), tuple(_partitions(execution.executedPlan())), exact)
    first = next((split for splits in scan.partitions for split in splits), None)
    if first is None:
        raise _NotPlain("it has no files")
    check_file(scan, first)
    return scan


def _columns(plan: Any, types: list[Any]) -> list[_Column]:
    """What a plan of Project over LogicalRelation gives, in terms of the relation. Raises ``_NotPlain``."""
    project = _is(plan, _LOGICAL + "Project")
    relation = plan.child() if project else plan
    if not _is(relation, _DATASOURCES + "LogicalRelation"):
        raise _NotPlain(f"its plan has {_class(relation)}")
    known = _file_columns(relation)
    attributes = [_attribute(expression) for expression in _each(plan.projectList() if project else plan.output())]
    columns = []
    for attribute, kind in zip(attributes, types, strict=True):
        if attribute not in known:
            raise _NotPlain("a column is not in the files")
        if not _is_plain(kind):
            raise _NotPlain(f"Spark's reader may change values of type {kind.simpleString()}")
        columns.append(_Column(known[attribute], kind))
    return columns


def _file_columns(relation: Any) -> dict[int, str]:
    """Names of a relation's columns that lie in its files, by the identity of their attributes."""
    files = relation.relation()
    if not _is(files, _DATASOURCES + "HadoopFsRelation"):
        raise _NotPlain(f"its source is {_class(files)}")
    if not _is(files.fileFormat(), _DATASOURCES + "parquet.ParquetFileFormat"):
        raise _NotPlain(f"its format is {_class(files.fileFormat())}")
    if files.bucketSpec().isDefined():
        raise _NotPlain("its table is bucketed")
    if odd := {str(key).lower() for key in _each(files.options().keys().toSeq())} - _OPTIONS:
        raise _NotPlain(f"it is read with the options {sorted(odd)}")
    in_files = set(files.dataSchema().fieldNames()) - set(files.partitionSchema().fieldNames())
    return {
        int(attribute.exprId().id()): str(attribute.name())
        for attribute in _each(relation.output())
        if attribute.name() in in_files
    }


def _attribute(expression: Any) -> int:
    """Identity of the attribute that an expression is, or renames."""
    if _is(expression, _EXPRESSIONS + "Alias"):
        expression = expression.child()
    if not _is(expression, _EXPRESSIONS + "AttributeReference"):
        raise _NotPlain(f"a column is computed: {expression.toString()}")
    return int(expression.exprId().id())


def _is_plain(kind: Any) -> bool:
    name = kind.typeName()
    return _is_plain(kind.elementType) if name == "array" else name in _PLAIN


def _partitions(plan: Any) -> Iterator[tuple[ParquetSplit, ...]]:
    """The splits of each partition of the one scan in an executed plan."""
    leaves = list(_each(plan.collectLeaves()))
    if len(leaves) != 1 or not _is(leaves[0], "org.apache.spark.sql.execution.FileSourceScanExec"):
        raise _NotPlain("its files are read by another scan than Spark's own")
    rdd = leaves[0].inputRDD()
    if not _is(rdd, _DATASOURCES + "FileScanRDD"):
        raise _NotPlain(f"its files are read by {_class(rdd)}")
    count = 0
    for partition in _each(rdd.filePartitions()):
        files = partition.files()
        count += len(files)
        if count > MOST_SPLITS:
            raise _NotPlain(f"it has more than {MOST_SPLITS} splits")
        yield tuple(_split(file) for file in files)


def _split(file: Any) -> ParquetSplit:
    path = str(file.filePath().toPath().toString())
    # "file:/a" and "file:///a" are the same to Hadoop; a local path is what all here open alike.
    local = path.removeprefix("file:") if path.startswith("file:/") else path
    return ParquetSplit(local, int(file.start()), int(file.length()), int(file.fileSize()))


def _each(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))


def _is(value: Any, name: str) -> bool:
    return _class(value) == name


def _class(value: Any) -> str:
    return str(value.getClass().getName())
