"""Implements `recordmill analyze` and `recordmill transform`, which apply TensorFlow Transform to a prepared dataset.

`analyze` computes statistics of a dataset and writes a graph that uses them. `transform` applies the graph, and writes
the transformed examples to the same number of shards. This package decodes images with the code of the reader, so that
analysis, training and serving get the same pixels. It is the only package of `beam_pipelines` that imports TensorFlow
and the reader.
"""
