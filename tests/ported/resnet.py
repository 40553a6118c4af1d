"""A small residual network on pictures in CIFAR's binary files, written as TensorFlowOnSpark's ResNet example is: each
node reads records of a fixed length, weights are decayed, and a callback sets the rate of learning at every batch.

``resnet.py FOLDER CONF`` makes the files and trains on two nodes, ``resnet.py FOLDER`` in one process.
"""

import json
import sys

SIDE, BATCH, TRAINED, VALIDATED = 32, 16, 96, 32
RATES = [(0.5, 0), (1.0, 1), (0.1, 2)]


def write(folder):
    """Files in the form of CIFAR-10: a byte of a label, then 3072 bytes of red, green and blue."""
    import numpy as np

    random = np.random.default_rng(2)
    for name, rows in (("data_batch_1.bin", 64), ("data_batch_2.bin", TRAINED - 64), ("test_batch.bin", VALIDATED)):
        labels = random.integers(0, 10, (rows, 1))
        pixels = random.integers(0, 60, (rows, 3 * SIDE * SIDE)) + labels * 19
        np.concatenate([labels, pixels], 1).astype("uint8").tofile(f"{folder}/{name}")


def records(tf, files, training):
    def parse(record):
        bytes_ = tf.cast(tf.io.decode_raw(record, tf.uint8), tf.float64)
        image = tf.transpose(tf.reshape(bytes_[1:], [3, SIDE, SIDE]), [1, 2, 0])
        return tf.image.per_image_standardization(image), bytes_[0]

    data = tf.data.FixedLengthRecordDataset(files, 1 + 3 * SIDE * SIDE)
    if training:
        data = data.shuffle(TRAINED, seed=1).repeat()
    data = data.map(parse, num_parallel_calls=tf.data.experimental.AUTOTUNE).batch(BATCH, drop_remainder=training)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options).prefetch(tf.data.experimental.AUTOTUNE)


def network(tf):
    layers, decay = tf.keras.layers, tf.keras.regularizers.L2(2e-4)

    def convolve(x, width, strides=1, size=3):
        x = layers.Conv2D(width, size, strides, padding="same", use_bias=False, kernel_regularizer=decay)(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    image = layers.Input((SIDE, SIDE, 3))
    x = layers.Activation("relu")(convolve(image, 8))
    for width, strides in ((8, 1), (16, 2)):
        short = x if strides == 1 else convolve(x, width, strides, size=1)
        x = convolve(layers.Activation("relu")(convolve(x, width, strides)), width)
        x = layers.Activation("relu")(layers.add([x, short]))
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(10, activation="softmax", kernel_regularizer=decay, bias_regularizer=decay)(x)
    return tf.keras.models.Model(image, x)


def train(folder, strategy):
    import numpy as np
    import tensorflow as tf

    tf.keras.backend.set_floatx("float64")
    tf.keras.backend.set_image_data_format("channels_last")
    tf.keras.utils.set_random_seed(3)

    class RatePerBatch(tf.keras.callbacks.Callback):
        def __init__(self, steps):
            super().__init__()
            self.steps, self.epochs, self.before = steps, -1, -1

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs += 1

        def on_batch_begin(self, batch, logs=None):
            now = self.epochs + float(batch) / self.steps
            rate = [0.1 * BATCH / 128 * factor for factor, start in RATES if now >= start][-1]
            if rate != self.before:
                self.model.optimizer.learning_rate = self.before = rate

    training = records(tf, [f"{folder}/data_batch_{i}.bin" for i in (1, 2)], training=True)
    validation = records(tf, [f"{folder}/test_batch.bin"], training=False)
    steps = TRAINED // BATCH
    with strategy.scope():
        model = network(tf)
        optimizer = tf.keras.optimizers.SGD(learning_rate=0.1, momentum=0.9)
        loss = "sparse_categorical_crossentropy"
        model.compile(loss=loss, optimizer=optimizer, metrics=["sparse_categorical_accuracy"])
    checked = {"validation_steps": VALIDATED // BATCH, "validation_data": validation, "validation_freq": 2}
    history = model.fit(
        training, epochs=3, steps_per_epoch=steps, callbacks=[RatePerBatch(steps)], **checked, verbose=2
    ).history
    history["evaluated"] = model.evaluate(validation, steps=VALIDATED // BATCH, verbose=2)
    return model, {name: np.array(values) for name, values in history.items()}


def save(folder, name, model, history):
    import numpy as np

    np.savez(f"{folder}/{name}.npz", *model.get_weights(), **history)


def main_fun(argv, ctx):
    import tensorflow as tf

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    model, history = train(argv[0], strategy)
    if ctx.job_name == "chief":
        save(argv[0], "two", model, history)


if __name__ == "__main__":
    folder, *conf = sys.argv[1:]
    if conf:
        from pyspark import SparkConf, SparkContext
        from tensorflowonspark import TFCluster

        write(folder)
        sc = SparkContext(conf=SparkConf().setAppName("resnet").setAll(json.loads(conf[0]).items()))
        mode = TFCluster.InputMode.TENSORFLOW
        cluster = TFCluster.run(sc, main_fun, [folder], 2, 0, False, mode, master_node="chief")
        cluster.shutdown()
    else:
        import tensorflow as tf

        save(folder, "one", *train(folder, tf.distribute.get_strategy()))
