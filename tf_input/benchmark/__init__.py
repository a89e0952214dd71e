"""Implements `recordmill benchmark`, which measures how fast a dataset is read.

The inputs are a dataset and reading options. The outputs are a table of throughput and CPU time for each stage of the
input pipeline, and advice.
"""
