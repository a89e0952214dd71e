"""The tf.data input pipeline, from the records of a batch to prefetched batches.

The inputs are a plan (split, order and host share), a reader and a decoder. The output is a `tf.data.Dataset` of known
length. The memory for records and batches that are read ahead is bounded.
"""
