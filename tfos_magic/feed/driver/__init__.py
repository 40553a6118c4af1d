"""In the kernel: the Spark jobs that feed a DataFrame, once into spools or again in each epoch, and what they tell.

A DataFrame and its column plan come in; feeds that workers can open go out.
"""
