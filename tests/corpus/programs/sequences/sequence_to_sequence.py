"""An encoder's state goes to a decoder that is taught with the right answers; padding weighs nothing."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(5)
source = rng.random((34, 5, 3))
answer = rng.integers(1, 6, size=(34, 4))
answer[::3, 2:] = 0
before = np.concatenate([np.full((34, 1), 6), answer[:, :-1]], axis=1)

encoder_in, decoder_in = keras.Input((None, 3)), keras.Input((None,), dtype="int64")
_, *state = layers.LSTM(4, return_state=True)(encoder_in)
decoded = layers.LSTM(4, return_sequences=True)(layers.Embedding(7, 3)(decoder_in), initial_state=state)
model = keras.Model([encoder_in, decoder_in], layers.Dense(7, activation="softmax")(decoded))
model.compile("rmsprop", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
history = model.fit([source, before], answer, sample_weight=(answer > 0).astype(float), batch_size=16, verbose=0)
