"""Reads batches of NumPy arrays without TensorFlow, for programs that train with torch or JAX.

    loader    an iterator of batches, which can be saved in the middle of an epoch and restored
    crops     random crops, flips and resizing of single images

The inputs are the records of a split, in the order that `epochs` determines. The outputs are dictionaries of arrays.
"""
