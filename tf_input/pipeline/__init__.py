"""The tf.data ladder: from which records a batch is made of to batches that a training waits for.

What comes in are a plan (which split, in which order, whose part), a reader and a decoder; what goes out is a `tf.data.Dataset` of known
length. What is read and decoded ahead is bounded in bytes.
"""
