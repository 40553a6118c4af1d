"""Estimators on a Spark Connect session, in a process of its own: it prints what came of it as JSON."""

from __future__ import annotations

import json
import sys

import keras
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tfos_magic.ml import KerasClassifier


def main(path: str) -> dict[str, object]:
    """Fit, tune, save, load and predict."""
    spark = SparkSession.builder.remote("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.range(120).select(
        F.rand(1).alias("a"), F.rand(2).alias("b"), F.when(F.col("id") % 3 == 0, "x").otherwise("y").alias("kind")
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
    asked = KerasClassifier(model=model, labelCol="index", epochs=2, seed=1, verbose=0, keepCluster=True)
    columns = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    fitted = Pipeline(stages=[StringIndexer(inputCol="kind", outputCol="index"), columns, asked]).fit(rows)
    fitted.write().overwrite().save(path)
    evaluator = MulticlassClassificationEvaluator(labelCol="index")
    first, again = (each.transform(rows).first()["probability"] for each in (fitted, PipelineModel.load(path)))
    prepared = rows.selectExpr("array(a, b) features", "int(kind = 'x') index")
    grid = ParamGridBuilder().addGrid(asked.epochs, [1, 2]).build()
    tuned = CrossValidator(estimator=asked, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2).fit(prepared)
    return {
        "same": list(first) == list(again),
        "accuracy": fitted.stages[-1].evaluate(fitted.stages[1].transform(fitted.stages[0].transform(rows)))[
            "accuracy"
        ],
        "metrics": list(map(float, tuned.avgMetrics)),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
