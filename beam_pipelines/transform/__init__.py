"""`recordmill analyze` and `recordmill transform`: TensorFlow Transform for prepared datasets.

`analyze` reads shards, and writes a transform graph that contains the computed statistics. `transform` reads shards,
and writes the transformed examples in the same order to the same number of shards. Only this package of the writer
imports TensorFlow and the reader, so that analysis, training and serving decode images in the same way.
"""
