"""Source `arrays`: NumPy arrays, and other files of pixels."""

from beam_pipelines.sources.formats.arrays.array_files import Arrays

__all__ = ["Arrays"]
