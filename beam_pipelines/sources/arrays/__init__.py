"""Reads arrays of numbers, such as uncompressed images, for the sources `arrays` and `fixed_length`.

The sources list the locations of pixels in NumPy, IDX, CIFAR and other binary files. Labels and other small values are
read during listing.
"""
