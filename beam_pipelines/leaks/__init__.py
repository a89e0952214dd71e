"""Finds examples that leak between splits or datasets, such as near-duplicates of training images in the test split.

The input is catalogs with image hashes. If the dataset was prepared without perceptual hashes, the images are read from
the shards and hashed. The report counts near-duplicate pairs, groups with examples in several splits, and conflicting
labels. The report also contains the keys of a few examples for each kind of leak.
"""
