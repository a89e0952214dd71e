"""From serialized examples to tensors: parse, decode, crop, flip, resize, and what follows the image.

What comes in are string [batch], or uint8 pixels, and a seed; what goes out is what a model is fed: `x`, `(x, y)` or `(x, y, weight)`.
All of it runs in TensorFlow's graph, on the CPU; `layers` does a part of it on the accelerator, in the model.
"""
