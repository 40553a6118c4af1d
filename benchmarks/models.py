"""What several benchmarks train, as source for a cell: MNIST-shaped rows, or rows of 40 tokens, in, ten logits out.

``TIMED_FIT`` of a model and its inputs leaves ``sample``, the wall and processor seconds of ``epochs`` epochs after
two to warm up.
"""

CNN = """keras.Sequential([
    keras.Input((784,)), keras.layers.Reshape((28, 28, 1)),
    keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Flatten(), keras.layers.Dense(10)])"""
MLP = """keras.Sequential([
    keras.Input((784,)), keras.layers.Dense(256, activation="relu"),
    keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])"""
WIDE_MLP = """keras.Sequential([
    keras.Input((784,)), keras.layers.Dense(512, activation="relu"),
    keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)])"""
EMBEDDING = """keras.Sequential([
    keras.Input((40,), dtype="int32"), keras.layers.Embedding(20000, 64),
    keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(10)])"""
TRANSFORMER = """keras.Model(
    tokens := keras.Input((40,), dtype="int32"),
    keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(
        (seen := keras.layers.LayerNormalization()(
            (words := keras.layers.Embedding(2000, 64)(tokens)) + keras.layers.MultiHeadAttention(4, 16)(words, words)
        )) + keras.layers.Dense(64)(keras.layers.Dense(128, activation="relu")(seen))
    ))))"""
PIXELS = "random.random((rows, 784), dtype=np.float32)"
TOKENS = "random.integers(0, 20000, (rows, 40), dtype=np.int32)"
COMMON_TOKENS = "random.integers(0, 2000, (rows, 40), dtype=np.int32)"
TIMED_FIT = """
import time
import keras
import numpy as np
random = np.random.default_rng(0)
x, y = {inputs}, random.integers(0, 10, rows)
model = {model}
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x, y, batch_size=batch, epochs=2, verbose=0)
wall, processor = time.perf_counter(), time.process_time()
model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
sample = (time.perf_counter() - wall, time.process_time() - processor)
"""
