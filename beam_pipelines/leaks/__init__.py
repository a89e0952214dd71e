"""Finds leaks between splits or datasets, for `recordmill leaks` and `recordmill prepare --duplicates`.

The input is catalogs with image hashes. If the catalogs have no perceptual hashes, the images are read from the shards
and hashed. The report contains the number of near-duplicate pairs, of groups that span several splits, and of
conflicting labels. The report also lists the first few keys of each kind of leak.
"""
