"""Base classes and functions for the source formats in which files annotate images."""
