"""Source `voc`: Pascal VOC's XML files."""

from beam_pipelines.sources.formats.voc.voc import Voc

__all__ = ["Voc"]
