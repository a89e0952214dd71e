"""Implements `recordmill benchmark`, which measures how fast a dataset is read.

The inputs are a dataset and reading options. The output is a table with the throughput and the CPU time of each stage
of the input pipeline, followed by advice.
"""
