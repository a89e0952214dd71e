"""Builds the tf.data input pipeline, which reads, decodes and prefetches batches.

The inputs are a plan (split, order and host share), a reader and a decoder. The output is a `tf.data.Dataset` of known
length. The pipeline limits the memory for records and batches that are read ahead.
"""
