"""Finds examples that leak between splits or datasets, such as near-duplicates of training images in the test split.

Leaks are found by comparing image hashes from the catalogs. If a dataset was prepared without perceptual hashes, the
images are read from the shards and hashed. The report counts near-duplicate pairs, groups that span splits, and
conflicting labels. It names a few examples of each kind of leak.
"""
