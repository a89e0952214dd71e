"""Image processing: identifies, checks, rotates, resizes and encodes images, and transforms their annotations.

The input is encoded bytes or raw pixels, with boxes, masks and arrays that belong to the image. The output is the bytes
to store, and the boxes, masks and arrays of the stored image. An image is decoded at most once. A JPEG is decoded at
reduced scale if the stored image is much smaller.
"""
