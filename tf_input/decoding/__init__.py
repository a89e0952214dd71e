"""From serialized examples to tensors: parsing, decoding, cropping, flipping and resizing, also of masks and boxes.

The inputs are records, string [batch], or cached uint8 pixels, and a seed. The outputs are what a model receives: `x`,
`(x, y)` or `(x, y, weight)`. Everything runs in a TensorFlow graph on the CPU. Only `layers` runs in the model, on the
accelerator.
"""
