"""Sources for images and values that are arrays of numbers, without an image format: `arrays` and `fixed_length`.

The input is NumPy, IDX or CIFAR files, or binary files of fixed-length records, optionally as gzip or in a zip archive.
The output is a reference to the pixels of each record. The values of other fields are read during listing.
"""
