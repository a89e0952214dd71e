"""`recordmill analyze` and `recordmill transform`: TensorFlow Transform for prepared datasets.

`analyze` reads shards, and writes a transform graph that contains the computed statistics. `transform` reads shards,
and writes the transformed examples in the same order to the same number of shards. No other package of `beam_pipelines`
imports TensorFlow and the reader. Analysis, training and serving therefore decode images in the same way.
"""
