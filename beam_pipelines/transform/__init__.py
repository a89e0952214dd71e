"""`recordmill analyze` and `recordmill transform`: TensorFlow Transform for prepared datasets.

`analyze` reads shards, and writes a transform graph with its statistics. `transform` reads shards, and writes a dataset
of transformed examples in the same order and shards. Only this package of the writer imports TensorFlow and the reader,
so that analysis, training and serving decode images in the same way.
"""
