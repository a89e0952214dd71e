"""`recordmill benchmark`: how fast a data set is read here, stage by stage.

What comes in are a data set and how it is read; what goes out is a table of images a second and CPU time an image, and the one change
that would help most.
"""
