"""`recordmill leaks`, and the certificate of `recordmill prepare --duplicates`: what is in two splits, or in two data sets.

What comes in are catalogs, with the hashes of images; where they have none of what is seen, images are read from the shards and hashed.
What goes out are counts of pairs that are alike and lie apart, of groups that do, and of labels that disagree, with the first few by name.
"""
