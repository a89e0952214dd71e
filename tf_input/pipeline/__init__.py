"""Builds the tf.data input pipeline, which reads, decodes and prefetches batches.

The inputs are a plan, a reader and a decoder. The plan defines the split, the order and the examples of this host. The
output is a `tf.data.Dataset` of known length. The pipeline limits the memory for records and batches that are read
ahead.
"""
