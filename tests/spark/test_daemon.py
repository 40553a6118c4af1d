"""A session that we made: its Python workers share what their daemon has loaded, and it has slots to spare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfos_magic.spark import class_archive

PROGRAM = """
import json
from tfos_magic.spark.session import make_local_session

def look(batches):
    import os, sys
    import pyarrow as pa
    loaded = [name for name in ("pyarrow.flight", "tfos_magic.worker.agent") if name in sys.modules]
    command = open(f"/proc/{os.getppid()}/cmdline").read().replace(chr(0), " ")
    list(batches)
    yield pa.RecordBatch.from_pydict({"loaded": [" ".join(loaded)], "parent": [command]})

spark = make_local_session(1)
row = spark.range(0, 1, 1, 1).mapInArrow(look, "loaded string, parent string").first()
options = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
room = {"master": spark.sparkContext.master, "partitions": spark.range(9).rdd.getNumPartitions()}
room["options"] = list(options)
print(json.dumps({**row.asDict(), **room}))
spark.sparkContext._jvm.System.err.println("from Java")
spark.stop()
"""


@pytest.mark.soak
def test_workers_begin_with_what_tasks_of_ours_need_and_slots_to_spare_make_no_partitions(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "XDG_CACHE_HOME": str(tmp_path)}
    archive = class_archive.path_of(tmp_path / "tfos_magic")
    archive.parent.mkdir()
    archive.write_bytes(b"classes of another JVM")  # which it does without, and does not tell of
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["loaded"].split() == ["pyarrow.flight", "tfos_magic.worker.agent"]
    assert "tfos_magic.spark.worker_daemon" in seen["parent"]
    assert (seen["master"], seen["partitions"]) == ("local[3]", 1)
    assert f"-XX:SharedArchiveFile={archive}" in seen["options"]
    assert "from Java" in done.stderr
    assert "log4j" not in done.stderr
    assert "WARN" not in done.stderr
