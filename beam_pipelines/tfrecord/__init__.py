"""The record format: TFRecord frames, and `tf.train.Example`s in them, without TensorFlow.

What comes in are features of a schema, and what goes out are the bytes of a record; and the other way round, for records that others
wrote, whose values are found where they lie and not copied.
"""
