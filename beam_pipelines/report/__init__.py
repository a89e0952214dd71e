"""The page of a data set, `report.html`: what it is, whether it is healthy, and what its examples look like, in one file.

What comes in is a data set whose shards are written, without its sources; what goes out is a page of bounded size that asks for nothing
else, and that is the same for equal runs but for the times and places of `run.json`.
"""
