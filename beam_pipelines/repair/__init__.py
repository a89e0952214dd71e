"""`recordmill repair`: finds what is damaged of a data set, and makes it again.

What comes in is a data set, and the sources where they lay; what goes out are the same bytes that it had, or the reason why not. It
lists and writes with the functions of `sources` and `shards`, one shard at a time, without Beam.
"""
