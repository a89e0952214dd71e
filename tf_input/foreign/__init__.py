"""TFRecords that others wrote, read as they lie.

What comes in are files and the names of their features; what goes out are batches as those of a prepared data set, shuffled as well as
a buffer can. There is no index, so order, position and parts of hosts are those of an interleave.
"""
