"""Rows and records: the files that contain them, and the values of their fields."""
