"""A program for TensorFlowOnSpark, as its users write them, on two nodes whose executors have one core each and none to
spare: it trains, predicts and fails, or does the rest of the API, and prints what happened as JSON."""

import json
import os
import sys
import time
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster, TFParallel, dfutil
from tensorflowonspark.pipeline import TFEstimator, TFModel

ROWS, WEIGHTS = 480, (3.14, 1.618)


def train(args, ctx):
    """A line is found; each row is taken by itself, as TensorFlowOnSpark's examples do it."""
    import numpy as np
    import tensorflow as tf
    from tensorflowonspark import TFNode, compat

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    feed = TFNode.DataFeed(ctx.mgr, False)

    def rows():
        while not feed.should_stop():
            batch = feed.next_batch(1)
            if not batch:
                return
            yield np.array(batch[0][0], "float32"), np.array([batch[0][1]], "float32")

    shapes = (tf.TensorShape([2]), tf.TensorShape([1]))
    data = tf.data.Dataset.from_generator(rows, (tf.float32, tf.float32), shapes).batch(args.batch_size)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,), kernel_initializer="ones")])
        model.compile(tf.keras.optimizers.SGD(args.rate), "mse")
    checkpoints = tf.keras.callbacks.ModelCheckpoint(args.folder + "/weights-{epoch:04d}", save_weights_only=True)
    model.fit(data, epochs=1, steps_per_epoch=args.steps, callbacks=[checkpoints], verbose=0)
    if ctx.job_name == "chief":
        np.savez(f"{args.folder}/{args.name}.npz", *model.get_weights())
        role = {"replicas": strategy.num_replicas_in_sync, "spec": ctx.cluster_spec, "config": os.environ["TF_CONFIG"]}
        with open(f"{args.folder}/{args.name}.json", "w") as file:
            json.dump(role, file)
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")
    feed.terminate()


def square(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(7)
        if len(batch):
            feed.batch_results([(ctx.task_index, number * number) for number in batch])


def fail(args, ctx):
    feed = ctx.get_data_feed()
    feed.next_batch(5)
    if ctx.task_index:
        raise ValueError("this node does not like its rows")
    while not feed.should_stop():
        feed.next_batch(5)


def add(args, ctx):
    """Adds up what comes; how far it is can be read from a file."""
    feed, total = ctx.get_data_feed(), 0
    while not feed.should_stop():
        total += sum(int(row[0]) for row in feed.next_batch(1))
        with open(f"{args.folder}/{args.name}-{ctx.worker_num}.partly", "w") as file:
            file.write(str(total))
        os.replace(file.name, file.name.removesuffix(".partly"))


def added(args):
    return sum(int(path.read_text()) for path in Path(args.folder).glob(args.name + "-?"))


def await_sum(args, total, seconds=90):
    deadline = time.monotonic() + seconds
    while added(args) < total and time.monotonic() < deadline:
        time.sleep(0.1)


def feed_streams(args, spark, sc):
    """A streaming DataFrame, one that fails, and a DStream."""
    from pyspark.streaming import StreamingContext

    told = {}
    for number in range(3):
        spark.range(number * 10, number * 10 + 10).coalesce(1).write.mode("append").json(args.folder + "/rows")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(args.folder + "/rows")
    args.name = "dataframe"
    cluster = TFCluster.run(sc, add, args, 2, 0, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(stream)
    await_sum(args, 435)
    spark.range(100, 110).coalesce(1).write.mode("append").json(args.folder + "/rows")
    cluster.shutdown()
    told["of a DataFrame"] = added(args)

    args.name = "failing"
    cluster = TFCluster.run(sc, add, args, 2, 0, input_mode=TFCluster.InputMode.SPARK)
    cluster.train(stream.selectExpr("raise_error('these rows are bad') id"))
    time.sleep(5)
    try:
        cluster.shutdown()
    except Exception as error:
        told["failure"] = f"{type(error).__name__}: {error}"

    args.name = "dstream"
    streaming = StreamingContext(sc, 1)
    cluster = TFCluster.run(sc, add, args, 2, 0, input_mode=TFCluster.InputMode.SPARK)
    batches = [sc.parallelize([(number,) for number in range(start, start + 10)], 2) for start in (0, 10)]
    cluster.train(streaming.queueStream(batches))
    streaming.start()
    await_sum(args, 190)
    streaming.stop(stopSparkContext=False, stopGraceFully=True)
    cluster.shutdown(streaming)
    told["of a DStream"] = added(args)
    return told


def zombies():
    """Python processes of clusters that have ended and are not reaped, after some seconds."""
    import psutil

    for _ in range(50):
        left = [
            process.pid
            for process in psutil.Process().children(recursive=True)
            if process.status() == psutil.STATUS_ZOMBIE and process.name().startswith("python")
        ]
        if not left:
            break
        time.sleep(0.1)
    return left


def leave(args, ctx):
    ctx.get_data_feed().next_batch(5)
    sys.exit(0)


def write(args, ctx):
    with open(f"{args.folder}/part-{ctx.worker_num}", "w") as file:
        file.write(f"{ctx.worker_num} of {ctx.num_workers}")


class Args:
    batch_size, rate, steps, name = 32, 0.02, 10.4, "trained"

    def __init__(self, folder):
        self.folder, self.export_dir = folder, folder + "/export"


if __name__ == "__main__":
    told, args = {}, Args(sys.argv[1])
    conf = SparkConf().setAppName("tensorflowonspark").setAll(json.loads(sys.argv[2]).items())
    sc = SparkContext(conf=conf)
    spark = SparkSession(sc)
    mode = TFCluster.InputMode.SPARK
    pairs = [(i % 16 / 8 - 1, i % 5 / 2 - 1) for i in range(ROWS)]
    lines = [([a, b], WEIGHTS[0] * a + WEIGHTS[1] * b) for a, b in pairs]

    if sys.argv[3] == "by themselves":
        cluster = TFCluster.run(sc, train, args, 2, 0, input_mode=mode, master_node="chief")
        told["roles"] = [(node["job_name"], node["task_index"]) for node in cluster.cluster_info]
        cluster.train(sc.parallelize(lines, 1), 1)
        cluster.shutdown()

        cluster = TFCluster.run(sc, square, args, 2, 0, input_mode=mode)
        asked = cluster.inference(sc.parallelize(range(100), 4))
        asked.take(3)  # which gives up the first partition
        answers = asked.collect()
        cluster.shutdown()
        told["squares"] = [answer for _, answer in answers] == [number * number for number in range(100)]
        told["nodes that answered"] = sorted({node for node, _ in answers})

        cluster = TFCluster.run(sc, fail, args, 2, 0, input_mode=mode)
        begun = time.monotonic()
        try:
            cluster.train(sc.parallelize(["row"] * 200_000, 8), 1)
            cluster.shutdown()
        except Exception as error:
            told["failure"], told["seconds to it"] = f"{type(error).__name__}: {error}", time.monotonic() - begun
        told["counted after it"] = sc.parallelize(range(10), 2).count()

    elif sys.argv[3] == "streams":
        told = feed_streams(args, spark, sc)

    else:
        TFParallel.run(sc, write, args, 2)
        told["written"] = sorted(Path(args.folder, f"part-{node}").read_text() for node in range(2))

        df = spark.createDataFrame(lines, ["x", "y"])
        args.name, args.rate, args.steps = "estimated", 0.3, 60
        estimator = TFEstimator(train, vars(args) | {"batch_size": 32, "rate": 0.3, "steps": 60, "name": "estimated"})
        estimator.setInputMapping({"x": "x", "y": "y"}).setClusterSize(2).setEpochs(6).setBatchSize(32)
        model = estimator.setExportDir(args.export_dir).setModelDir(args.folder).fit(df)
        model.setInputMapping({"x": "dense_input"}).setOutputMapping({"dense": "found"})
        found = [row.found[0] for row in model.transform(df).collect()]
        told["furthest from the line"] = max(abs(made - y) for made, (_, y) in zip(found, lines, strict=True))
        again = TFModel(vars(args)).setInputMapping({"x": "dense_input"}).setOutputMapping({"dense": "found"})
        told["predicted alike"] = [
            row.found[0] for row in again.setExportDir(args.export_dir).transform(df).collect()
        ] == found

        dfutil.saveAsTFRecords(df, args.folder + "/records")
        back = dfutil.loadTFRecords(sc, args.folder + "/records")
        texts = spark.createDataFrame([(bytearray(b"\xff\x00"),)], "b binary")
        dfutil.saveAsTFRecords(texts, args.folder + "/bytes")
        try:
            dfutil.loadTFRecords(sc, args.folder + "/bytes").collect()
        except Exception as error:
            told["no text"] = str(error)
        kept = dfutil.loadTFRecords(sc, args.folder + "/bytes", binary_features=["b"]).first()
        told["bytes"] = list(kept.b)

        cluster = TFCluster.run(sc, leave, args, 2, 0, input_mode=mode)
        cluster.train(sc.parallelize(range(400), 4), 1)
        cluster.shutdown()
        told["zombies"] = zombies()
        told["read back"] = (back.dtypes, back.count(), dfutil.isLoadedDF(back), dfutil.isLoadedDF(df))
    print("told " + json.dumps(told), flush=True)
