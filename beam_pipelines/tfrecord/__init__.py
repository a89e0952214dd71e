"""Reads and writes TFRecord files and `tf.train.Example`s without TensorFlow.

The writer encodes the features of a schema as the bytes of a record. The reader supports records that third-party tools
wrote. To avoid copies, the reader returns the positions of values in the bytes of a record.
"""
