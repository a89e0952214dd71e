"""Images and values as arrays of numbers, without an image format: the sources `arrays` and `fixed_length`.

What comes in are files of NumPy, IDX or CIFAR, or binary files of records of one length, on a disk, as gzip or in a zip archive; what goes
out are references to each record's pixels, with the values of its other fields, which are read as they are listed.
"""
