"""Annotations of images that several formats share."""
