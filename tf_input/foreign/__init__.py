"""Reads TFRecords that other tools wrote, without preparing them.

The inputs are files and the meaning of their features, as a layout or as a user function. The outputs are batches like
those of a prepared dataset, shuffled with a buffer. There is no index, so exact order, iterator state and host shares
do not exist.
"""
