"""TFRecord files read and written by Spark, without TensorFlow: frames, messages and columns, a block at a time.

Files come in, and Arrow batches of a DataFrame go out; the other way for ``write``.
"""

from __future__ import annotations

from tfos_magic.spark.shipping import Session, ship_package

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register_tfrecord(spark: Session) -> None:
    """Make ``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")`` of a session, classic or Connect.

    Where executors are not this installation, this package is sent to them; they need ``google-crc32c`` and, for other
    file systems than their own, what fsspec needs. Doing it again changes nothing. Sessions made by
    ``newSession`` have formats of their own, and Spark looks for the name in the session that is active in this thread.

    Conditions on columns of folders (``day=3``) leave whole files unread in a session that had
    ``spark.sql.python.filterPushdown.enabled`` set to true before.
    """
    from tfos_magic.tfrecord.data_source import PruningTFRecordSource, TFRecordSource  # here: it imports pyspark

    ship_package(spark)
    pruning = str(spark.conf.get(_PUSHDOWN, "false")).lower() == "true"
    try:
        spark.dataSource.register(PruningTFRecordSource if pruning else TFRecordSource)
    except Exception as error:  # which class it has depends on the session's kind
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
