"""TFRecords that others wrote, read as they lie.

What comes in are files and what their features mean, by a layout or by a function of the user's; what goes out are batches as those of a
prepared data set, shuffled as well as a buffer can. There is no index, so order, position and parts of hosts are those of an interleave.
"""
