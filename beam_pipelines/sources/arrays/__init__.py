"""Reads arrays of numbers, such as uncompressed images, for the sources `arrays` and `fixed_length`.

Each source lists where the pixels of an image are stored in a NumPy, IDX, CIFAR or other binary file. Labels and other
small values are read during listing.
"""
