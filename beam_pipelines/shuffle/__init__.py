"""The global shuffle: which shard each input goes to, and at which place.

What comes in are sorted runs of references; what goes out is the plan: for each shard its references in the order of their shuffle keys.
Nobody holds all keys, and no image is read, but for a sample that says whether the inputs are worth a run.
"""
