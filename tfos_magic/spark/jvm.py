"""The JVM of a session that we make: what it prints comes to this process, without what tells nobody anything."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

# How Spark logs, and what the JVM and Hadoop do without.
_BANNER = re.compile(
    rb"Using Spark's default log4j profile|Setting (default|Spark) log level to|To adjust logging level use"
    rb"|Using incubator modules|Unable to load native-hadoop library"
)


def launch_jvm(conf: Any) -> None:
    """Launch the JVM that a session with ``conf`` is to have, unless this process has one. Raises what PySpark does."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="spark-messages", daemon=True).start()
    try:
        SparkContext(conf=conf, gateway=launch_gateway(conf, {"stderr": writing}))
    finally:
        os.close(writing)


def _pass_on(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not _BANNER.search(line):
                os.write(
                    2, line
                )  # where the JVM would have written; Python's stderr may be gone when this process ends
