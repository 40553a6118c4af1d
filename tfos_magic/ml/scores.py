"""What stages make of a model's outputs: a prediction, and for classes raw predictions and probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfos_magic.frames.inference.prediction import Prediction
from tfos_magic.frames.mapping import map_blocks
from tfos_magic.frames.source import quoted
from tfos_magic.ml.fit_on_workers import Facts

BLOCK_ROWS = 1024
VECTORS = ("rawPrediction", "probability")


@dataclass
class Scores(Prediction):
    """A model as a tensor function whose outputs are those of ``columns``: names by what they hold.

    ``prediction`` is the output itself or, for a classifier, the class, of float64. One output of a classifier is the
    probability of the second of two classes, or its logit.
    """

    facts: Facts
    columns: Mapping[str, str]

    def __call__(self, **values: Any) -> dict[str, Any]:
        (value,) = super().__call__(**values).values()
        made = self.of(value)
        return {name: made[what] for what, name in self.columns.items()}

    def of(self, value: Any) -> dict[str, Any]:
        """Tensors by what they hold, from the model's output for some rows."""
        import tensorflow as tf

        value = tf.cast(value, tf.float64)
        if not self.facts.classifies:
            return {"prediction": tf.reshape(value, [-1]) if self._is_number else value}
        two = value.shape[-1] == 1
        raw = probability = tf.concat([1.0 - value, value], axis=1) if two else value
        if self.facts.logits:
            # Of two classes a margin, as Spark's evaluators rank rows by the second of the raw predictions.
            margin = value[:, 1:] - value[:, :1] if value.shape[-1] == 2 else value
            raw = tf.concat([-margin, margin], axis=1) if margin.shape[-1] == 1 else value
            probability = tf.concat([tf.sigmoid(-value), tf.sigmoid(value)], axis=1) if two else tf.nn.softmax(value)
        place = tf.argmax(probability, axis=1)
        chosen = tf.gather(tf.constant(self.facts.classes, tf.int64), place) if self.facts.classes else place
        is_known = ~tf.reduce_any(tf.math.is_nan(probability), axis=1)  # nothing is told of NaN, no class either
        prediction = tf.where(is_known, tf.cast(chosen, tf.float64), tf.constant(math.nan, tf.float64))
        return {"rawPrediction": raw, "probability": probability, "prediction": prediction}

    def transform(self, dataset: Any) -> Any:
        """``dataset`` with the columns; lazy. Nothing is traced here, so that no TensorFlow is needed here."""
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions as F
        from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

        depth = {what: 1 if what in VECTORS else 0 for what in self.columns}
        if not self.facts.classifies:
            depth["prediction"] = 0 if self._is_number else len(self.facts.shape)
        types: dict[str, Any] = {}
        for what, name in self.columns.items():
            types[name] = DoubleType()
            for _ in range(depth[what]):
                types[name] = ArrayType(types[name])
        schema = StructType([StructField(name, kind) for name, kind in types.items()])
        feed = dict(zip(self.parameters, self.features, strict=True))
        made = map_blocks(self, dataset, feed_dict=feed, block_rows=BLOCK_ROWS, schema=schema)
        for name in [name for what, name in self.columns.items() if what in VECTORS]:
            made = made.withColumn(name, array_to_vector(F.col(quoted(name))))
        return made

    @property
    def _is_number(self) -> bool:
        return math.prod(length or 0 for length in self.facts.shape) == 1
