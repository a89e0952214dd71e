"""Reads and writes TFRecord files and `tf.train.Example`s without TensorFlow.

The writer turns the features of a schema into the bytes of a record. The reader also accepts records that other tools
wrote. The reader locates values inside the record and does not copy them.
"""
