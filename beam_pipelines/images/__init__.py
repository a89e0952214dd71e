"""Checks, rotates, resizes and encodes images, and transforms annotations accordingly.

The input is an image (encoded bytes or raw pixels), with its boxes, masks and arrays. The output is the image bytes to
store, with transformed boxes, masks and arrays. An image is decoded at most once. JPEGs are decoded at a reduced scale
if they are resized to a much smaller size.
"""
