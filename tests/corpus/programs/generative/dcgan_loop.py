"""A convolutional GAN in a loop of its own: one traced step, two tapes, two optimizers, images kept as it goes."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "expectation"

dtype, width = keras.config.floatx(), 4
images = np.random.default_rng(4).uniform(-1, 1, size=(40, 8, 8, 1)).astype(dtype)
dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(40, seed=2).batch(16)

generator = keras.Sequential(
    [
        keras.Input((width,)),
        layers.Dense(4 * 4 * 3, use_bias=False),
        layers.BatchNormalization(),
        layers.LeakyReLU(),
        layers.Reshape((4, 4, 3)),
        layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh"),
    ]
)
discriminator = keras.Sequential(
    [keras.Input((8, 8, 1)), layers.Conv2D(4, 3, strides=2), layers.LeakyReLU(), layers.Flatten(), layers.Dense(1)]
)
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer, discriminator_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
seed = tf.random.normal([2, width], dtype=dtype)


@tf.function
def train_step(real):
    noise = tf.random.normal([tf.shape(real)[0], width], dtype=dtype)
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        fake = generator(noise, training=True)
        real_output, fake_output = discriminator(real, training=True), discriminator(fake, training=True)
        gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
        disc_loss = cross_entropy(tf.ones_like(real_output), real_output)
        disc_loss += cross_entropy(tf.zeros_like(fake_output), fake_output)
    of_generator = gen_tape.gradient(gen_loss, generator.trainable_variables)
    of_discriminator = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(of_generator, generator.trainable_variables, strict=True))
    discriminator_optimizer.apply_gradients(zip(of_discriminator, discriminator.trainable_variables, strict=True))
    return gen_loss, disc_loss


losses, shown = [], []
for _epoch in range(2):
    for batch in dataset:
        losses.append([float(loss) for loss in train_step(batch)])
    shown.append(generator(seed, training=False).numpy())
