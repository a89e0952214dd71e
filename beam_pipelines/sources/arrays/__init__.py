"""Sources for images that are stored as arrays of numbers, without an image format: `arrays` and `fixed_length`.

Supported files are NumPy, IDX, CIFAR and binary files with fixed-length records, optionally compressed. Each source
yields references to the pixels in the records. Labels and other small values are read during listing.
"""
