"""The page of a data set, `report.html`: what it is, whether it is healthy, and what its examples look like, in one file.

What comes in is a data set whose shards are written, and nothing of its sources; what goes out is a page that asks for nothing else. It
follows from the files of the data set but for `run.json`'s times and places, so that equal runs give equal pages. Its size is bounded, and
so is what is read for it: examples lie in a random order, so that the first ones of a split are a fair sample of it.
"""
