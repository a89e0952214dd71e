"""One shard from its piece of the plan: a pure function of that and of the sources.

What comes in are references in rank order; what goes out are a TFRecord file, an index, a catalog, and what is to be summed up of them.
Each image is read once, here (and once before the plan, where images are compared: `hash_images`); what is wrong with one becomes a dead
letter, and what is wrong with a disk fails the bundle.
"""
