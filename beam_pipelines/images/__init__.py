"""Checks, rotates, resizes and encodes images, and transforms their annotations.

The input is an image, as encoded bytes or raw pixels, and its boxes, masks and arrays. The output is the image bytes to
store, with transformed boxes, masks and arrays. An image is decoded at most once. JPEGs are decoded at a reduced scale
if they are resized to a much smaller size.
"""
