"""The models that several benchmarks train, as source for a cell: MNIST-shaped rows in, ten logits out."""

CNN = """keras.Sequential([
    keras.Input((784,)), keras.layers.Reshape((28, 28, 1)),
    keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Flatten(), keras.layers.Dense(10)])"""
MLP = """keras.Sequential([
    keras.Input((784,)), keras.layers.Dense(256, activation="relu"),
    keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])"""
