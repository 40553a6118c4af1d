"""TensorFrames on Arrow: tensor functions over the columns of DataFrames (``import tfos_magic.frames as tfs``).

A DataFrame of Spark or pandas and a Python function, traced as ``tf.function``, or a model come in; a DataFrame with
what they computed goes out, as Arrow batches, never row by row. The operations are those of TensorFrames (Databricks,
2016).
"""

from tfos_magic.frames.grouping import aggregate
from tfos_magic.frames.inference.prediction import predict
from tfos_magic.frames.mapping import map_blocks, map_rows
from tfos_magic.frames.reducing import reduce_blocks, reduce_rows
from tfos_magic.frames.schema import analyze, append_shape, explain, print_schema

__all__ = [
    "aggregate",
    "analyze",
    "append_shape",
    "explain",
    "map_blocks",
    "map_rows",
    "predict",
    "print_schema",
    "reduce_blocks",
    "reduce_rows",
]
