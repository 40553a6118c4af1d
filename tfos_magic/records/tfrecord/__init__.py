"""TFRecord files read and written by Spark, without TensorFlow: frames, messages and columns, a block at a time."""

from __future__ import annotations

from tfos_magic.shipping import Session, ship_package


def register_tfrecord(spark: Session) -> None:
    """Make ``spark.read.format("tfrecord")`` and ``df.write.format("tfrecord")`` of a session, classic or Connect.

    Where executors are not this installation, this package is sent to them; they need ``google-crc32c`` and, for other
    file systems than their own, what fsspec needs. Doing it again changes nothing. Sessions made by
    ``newSession`` have formats of their own, and Spark looks for the name in the session that is active in this thread.
    """
    from tfos_magic.records.tfrecord.source import TFRecordSource  # here, for it imports pyspark

    ship_package(spark)
    try:
        spark.dataSource.register(TFRecordSource)
    except Exception as error:  # which class it has depends on the session's kind
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
