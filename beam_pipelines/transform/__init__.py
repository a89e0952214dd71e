"""`recordmill analyze` and `recordmill transform`: TensorFlow Transform over a data set that is written.

What comes in are shards; what goes out of the first is a graph and the numbers that it needed, and of the second a data set of
transformed examples, in the same order and shards. This room alone imports TensorFlow, and the reader, so that analysis, training and
serving decode alike.
"""
