"""Train ordinary Keras cells on TensorFlow clusters that live on Spark executors.

Importing this package loads neither TensorFlow nor Spark.
"""
__version__ = "0.1.0.dev0"
