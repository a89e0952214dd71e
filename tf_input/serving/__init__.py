"""A model and its preprocessing in one SavedModel.

What comes in are a model and the data set that it was trained on; what goes out is a directory that a server loads: encoded images in,
class names and scores out. What is fed there is decoded by the functions of `decoding`, as in training.
"""
