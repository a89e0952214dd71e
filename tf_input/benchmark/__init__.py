"""Implements `recordmill benchmark`, which measures how fast a dataset is read.

The command reads a dataset with the given reading options. It prints a table with the throughput and the CPU time of
each stage of the input pipeline, followed by advice.
"""
