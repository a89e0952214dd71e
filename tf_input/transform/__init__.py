"""Applies the preprocessing graph from `recordmill analyze` to parsed features.

The package loads the directory that `recordmill analyze` wrote. It provides a function that runs the graph, and the
schema of the results. TensorFlow Transform is not needed.
"""
