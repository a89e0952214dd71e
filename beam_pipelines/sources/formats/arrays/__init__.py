"""Source `arrays`: NumPy, IDX and CIFAR files."""

from beam_pipelines.sources.formats.arrays.array_files import Arrays

__all__ = ["Arrays"]
