"""TensorFlowOnSpark's package by its own name on executors: the modules of ``tfos_magic.tensorflowonspark``."""

of_tfos_magic = True

from tfos_magic.tensorflowonspark import install  # noqa: E402

install()
