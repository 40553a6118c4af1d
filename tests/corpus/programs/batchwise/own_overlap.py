"""A Dice loss of one's own that flattens the whole batch, as many segmentation programs have it."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


def dice_loss(y_true, y_pred):
    y_true, y_pred = ops.reshape(ops.cast(y_true, y_pred.dtype), [-1]), ops.reshape(y_pred, [-1])
    both = ops.sum(y_true * y_pred)
    return 1 - (2 * both + 1) / (ops.sum(y_true) + ops.sum(y_pred) + 1)


images = np.random.default_rng(12).random((37, 4, 4, 1))
masks = (images > 0.7).astype("int64")
model = keras.Sequential([keras.Input((4, 4, 1)), layers.Conv2D(1, 3, padding="same", activation="sigmoid")])
model.compile("adam", dice_loss)
model.fit(images, masks, batch_size=16, verbose=0)
