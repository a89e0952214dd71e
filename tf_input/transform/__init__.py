"""Applies the preprocessing graph from `recordmill analyze` to parsed features.

The input is the directory that `recordmill analyze` wrote. The outputs are a function that runs the graph, and the
schema of the graph's results. TensorFlow Transform is not needed.
"""
