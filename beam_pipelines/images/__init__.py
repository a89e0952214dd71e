"""Checks, rotates, resizes and encodes images, and transforms annotations accordingly.

The images can be encoded files or raw pixels. Boxes, masks and arrays are rotated and resized with their images. An
image is decoded at most once. A JPEG is decoded at a reduced scale if it is resized to a much smaller size.
"""
