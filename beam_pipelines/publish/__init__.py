"""From shards to a data set: sums, statistics, and the manifest last; and the directory in which all of it comes to be.

What comes in are shards that are written; what goes out is a data set, whole, or nothing that looks like one. What a killed run has left
is found here, and gone on from.
"""
