"""Source `webdataset`: tar files of samples."""

from beam_pipelines.sources.formats.webdataset.webdataset import WebDataset

__all__ = ["WebDataset"]
