"""`recordmill analyze` and `recordmill transform`: TensorFlow Transform for prepared datasets.

The command `analyze` computes statistics of a dataset, and writes a transform graph with these statistics. The command
`transform` applies the graph, and writes transformed examples to the same number of shards. Only this package of
`beam_pipelines` imports TensorFlow and the reader. Images are therefore decoded in the same way during analysis,
training and serving.
"""
