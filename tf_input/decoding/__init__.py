"""Converts serialized examples to tensors: parses them, and decodes, crops, flips and resizes images, masks and boxes.

The inputs are a seed and a batch, which consists of records, string [batch], or of cached examples. The outputs have
the form that Keras accepts: `x`, `(x, y)` or `(x, y, weight)`. Decoding runs in a TensorFlow graph on the CPU. The
Keras layers in `layers` run as part of the model, on its device.
"""
