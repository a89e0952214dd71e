"""Source `arrays`: NumPy arrays, and other files of pixels."""
