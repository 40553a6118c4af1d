"""A teacher is trained; a student learns from its softened answers by a compute_loss of its own."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha=0.2, temperature=3.0):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft = ops.softmax(self.teacher(x, training=False) / self.temperature, axis=1)
        mine = ops.softmax(y_pred / self.temperature, axis=1)
        apart = self.distillation_loss(soft, mine) * self.temperature**2
        return self.alpha * self.student_loss(y, y_pred) + (1 - self.alpha) * apart

    def call(self, x):
        return self.student(x)


def network(units):
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(3)])


x = np.random.default_rng(9).normal(size=(43, 5))
y = np.digitize(x[:, 0], [-0.5, 0.5])
crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher, student = network(12), network(3)
teacher.compile("adam", crossentropy)
teacher.fit(x, y, batch_size=16, epochs=2, verbose=0)
teacher.trainable = False

distiller = Distiller(student, teacher)
distiller.compile("adam", [keras.metrics.SparseCategoricalAccuracy()], crossentropy, keras.losses.KLDivergence())
history = distiller.fit(x, y, batch_size=16, epochs=2, verbose=0)
