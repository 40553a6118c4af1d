"""The program that both run in ``tfos.py``, written for TensorFlowOnSpark."""

import json
import sys
import time

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster

PIXELS = 784


def idle(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(1)


def one_by_one(args, ctx):
    import numpy as np

    feed = ctx.get_data_feed()
    while not feed.should_stop():
        for row in feed.next_batch(1):
            np.array(row[0]).astype(np.float32)


def hundreds(args, ctx):
    import numpy as np

    feed = ctx.get_data_feed()
    while not feed.should_stop():
        batch = feed.next_batch(100)
        np.array([row[0] for row in batch], np.float32)


def answer(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(100)
        if len(batch):
            feed.batch_results([sum(row[0][:10]) for row in batch])


def timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fed(program, *data):
    """Seconds that the last of ``data`` took to be fed, the others having been fed before it."""
    cluster = TFCluster.run(sc, program, {}, 2, 0, input_mode=TFCluster.InputMode.SPARK)
    seconds = [timed(lambda each=each: cluster.train(each, 1)) for each in data]
    cluster.shutdown()
    return seconds[-1]


if __name__ == "__main__":
    ours, rows = sys.argv[1] == "ours", int(sys.argv[2])
    conf = {"spark.master": "local-cluster[2,1,2048]", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    sc = SparkContext(conf=SparkConf().setAppName("tfos").setAll(conf.items()))
    spark = SparkSession(sc)
    few = sc.parallelize([([0] * PIXELS, 0)] * 20, 2)
    lists = sc.parallelize(range(rows), 4).map(lambda i: ([i % 256] * PIXELS, i % 10)).cache()

    def as_array(row):
        import numpy as np

        return np.array(row[0], np.float32), row[1]

    arrays = lists.map(as_array).cache()
    df = lists.toDF(["image", "label"]).repartition(4).cache()
    few_df = few.toDF(["image", "label"])
    print(lists.count(), arrays.count(), df.count(), flush=True)
    measured = {"empty cluster": timed(lambda: fed(idle, few))}
    measured["lists"] = rows / fed(one_by_one, few, lists)
    measured["arrays"] = rows / fed(hundreds, few, arrays)
    measured["dataframe"] = rows / fed(hundreds, *([few_df, df] if ours else [few_df.rdd, df.rdd]))
    cluster = TFCluster.run(sc, answer, {}, 2, 0, input_mode=TFCluster.InputMode.SPARK)
    cluster.inference(few).count()
    measured["answers"] = rows / timed(lambda: cluster.inference(lists).count())
    cluster.shutdown()
    print("measured " + json.dumps(measured), flush=True)
    sc.stop()
