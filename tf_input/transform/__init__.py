"""Applies the preprocessing graph from `recordmill analyze` to parsed features.

The input is the directory of a transform. The outputs are its graph as a function of tensors, and the schema of its
results. TensorFlow Transform is not needed.
"""
