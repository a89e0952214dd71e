"""Checks, rotates, resizes and encodes images.

Images can be encoded files or raw pixels. Boxes, masks and arrays are rotated and resized with their images. An image
is decoded at most once. A JPEG that is resized to a much smaller size is decoded at a reduced scale.
"""
