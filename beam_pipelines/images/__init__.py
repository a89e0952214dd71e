"""Images: what they are, whether a decoder takes them, turned upright, made smaller, and what follows them.

What comes in are encoded bytes, or pixels without a format, and what lies over the image: boxes, masks, arrays; what goes out are the
bytes that are stored, and the same boxes, masks and arrays over these. An image is decoded once at most, at a fraction of its scale
where that is enough.
"""
