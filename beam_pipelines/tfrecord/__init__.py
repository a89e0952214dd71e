"""Reads and writes TFRecord files and `tf.train.Example`s without TensorFlow.

The writer encodes the features of a schema as the bytes of a record. The reader supports records of third-party tools.
To avoid copies, the reader can return the positions of values instead of the values.
"""
