"""Maps a DataFrame where executors have GPUs, made up by a discovery script; prints what each task saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import numpy as np
import tensorflow as tf
from pyspark import TaskContext
from pyspark.sql import SparkSession

import tfos_magic.frames as tfs


def look(values: Any) -> Any:
    context = TaskContext.get()
    assert context is not None
    given = context.resources()
    told = {
        "given": list(given["gpu"].addresses) if "gpu" in given else [],
        "seen": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "growth": os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"),
    }
    return np.array([json.dumps(told).encode()] * len(values), object)


def seen(x: Any) -> dict[str, Any]:
    told = tf.numpy_function(look, [x], tf.string)
    told.set_shape(x.shape)
    return {"told": told}


def main(options: dict[str, str], twice: bool) -> dict[str, Any]:
    builder = SparkSession.builder.master("local-cluster[1,2,600]")
    for key, value in options.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    frame = spark.range(0, 8, 1, 2).selectExpr("cast(id as double) x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mapped = tfs.map_blocks(seen, frame, schema="told string")
        if twice:
            mapped = tfs.map_blocks(lambda x: {"y": x + 1}, mapped, schema="y double")  # in the same stage
        rows = [{**row.asDict(), **json.loads(row.told)} for row in mapped.collect()]
    spark.stop()
    return {"rows": rows, "warnings": [str(each.message) for each in caught]}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]), json.loads(sys.argv[2]))))
