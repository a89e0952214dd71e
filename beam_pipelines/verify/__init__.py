"""`recordmill verify`: is a data set what its manifest says, down to each record?

What comes in is a data set, on a disk or in a store, and nothing of its sources; what goes out is a report of what is damaged: which
file, which record, which byte, and why. A Beam pipeline reads each shard once, with its index and its catalog.
"""
