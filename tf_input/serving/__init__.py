"""Exports a model together with its preprocessing as one SavedModel.

The inputs are a model and the dataset that it was trained on. The output is a directory that a server loads, which maps
encoded images to class names and scores. Requests are decoded by the functions of `decoding`, as in training.
"""
