"""What `recordmill analyze` wrote, applied to parsed features.

What comes in is the directory of a transform; what goes out is its graph as a function of tensors, and the schema of what it gives.
TensorFlow Transform is not needed.
"""
