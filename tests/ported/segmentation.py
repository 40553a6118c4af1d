"""A U-net that cuts discs and squares out of small pictures, written as TensorFlowOnSpark's segmentation example is:
each node reads all pictures itself, the encoder is frozen, and the decoder takes up what its levels saw.

``segmentation.py FOLDER CONF`` trains on two nodes, ``segmentation.py FOLDER`` in one process.
"""

import json
import sys

SIDE, PICTURES, KINDS = 32, 60, 3


def scenes(tf):
    """Pictures of a square or a disc each, and what each of their pixels is of: nothing, the shape or its border."""
    place = tf.cast(tf.stack(tf.meshgrid(tf.range(SIDE), tf.range(SIDE), indexing="ij"), -1), tf.float64)

    def scene(number):
        middle = tf.cast(tf.stack([8 + number * 5 % 17, 8 + number * 11 % 17]), tf.float64)
        away = tf.abs(place - middle)
        round_, square = tf.norm(away, axis=-1), tf.reduce_max(away, axis=-1)
        distance = tf.where(number % 2 == 0, round_, square)
        mask = tf.where(distance < 5, 2, tf.where(distance < 7, 3, 1))
        shade = tf.cast(tf.stack([number % 5, number % 7, number % 3]), tf.float64) * 40
        picture = tf.where((distance < 7)[..., None], 255.0 - shade, shade + distance[..., None])
        return {"image": picture, "segmentation_mask": mask[..., None]}

    return tf.data.Dataset.range(PICTURES).map(scene)


def train(folder, strategy):
    import numpy as np
    import tensorflow as tf

    tf.keras.backend.set_floatx("float64")
    tf.keras.utils.set_random_seed(5)
    layers = tf.keras.layers

    def load(point):
        return point["image"] / 128.0 - 1, point["segmentation_mask"] - 1

    data = scenes(tf).map(load, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    training = data.take(48).cache().shuffle(48, seed=3).batch(12).repeat()
    training = training.prefetch(buffer_size=tf.data.experimental.AUTOTUNE)
    testing = data.skip(48).batch(12)

    def down(x, width, name):
        x = layers.SeparableConv2D(width, 3, strides=2, padding="same", name=name)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    def up(width):
        parts = [layers.Conv2DTranspose(width, 3, strides=2, padding="same"), layers.BatchNormalization()]
        return tf.keras.Sequential([*parts, layers.ReLU()])

    with strategy.scope():
        picture = layers.Input(shape=[SIDE, SIDE, 3])
        levels = [down(picture, 8, "to_16")]
        for width, name in ((16, "to_8"), (24, "to_4")):
            levels.append(down(levels[-1], width, name))
        encoder = tf.keras.Model(inputs=picture, outputs=levels)
        encoder.trainable = False

        inputs = layers.Input(shape=[SIDE, SIDE, 3])
        *skips, x = encoder(inputs)
        for width, skip in zip((16, 8), reversed(skips), strict=True):
            x = layers.Concatenate()([up(width)(x), skip])
        x = layers.Conv2DTranspose(KINDS, 3, strides=2, padding="same", activation="softmax")(x)
        model = tf.keras.Model(inputs=inputs, outputs=x)
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = []
    if strategy.num_replicas_in_sync > 1:
        path = folder + "/model/weights-{epoch:04d}"
        tf.io.gfile.makedirs(folder + "/model")
        callbacks = [tf.keras.callbacks.ModelCheckpoint(filepath=path, verbose=1, save_weights_only=True)]
    history = model.fit(
        training, epochs=2, steps_per_epoch=4, callbacks=callbacks, validation_steps=1, validation_data=testing
    )
    return model, {name: np.array(values) for name, values in history.history.items()}


def save(folder, name, model, history):
    import numpy as np

    np.savez(f"{folder}/{name}.npz", *model.get_weights(), **history)


def main_fun(args, ctx):
    import tensorflow as tf

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    model, history = train(args, strategy)
    model.save(args + "/export", save_format="tf")
    if ctx.job_name == "chief":
        save(args, "two", model, history)


if __name__ == "__main__":
    folder, *conf = sys.argv[1:]
    if conf:
        from pyspark import SparkConf, SparkContext
        from tensorflowonspark import TFCluster

        sc = SparkContext(conf=SparkConf().setAppName("segmentation").setAll(json.loads(conf[0]).items()))
        cluster = TFCluster.run(sc, main_fun, folder, 2, num_ps=0, master_node="chief")
        cluster.shutdown(grace_secs=30)
    else:
        import tensorflow as tf

        save(folder, "one", *train(folder, tf.distribute.get_strategy()))
