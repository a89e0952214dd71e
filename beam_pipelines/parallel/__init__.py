"""Provides pools of worker processes, read-ahead threads, progress counts and signal handling.

The input is functions and their arguments. The output is their results, in order.
"""
