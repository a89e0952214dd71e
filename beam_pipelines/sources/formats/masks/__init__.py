"""Source `masks`: images and segmentation masks."""

from beam_pipelines.sources.formats.masks.masks import Masks

__all__ = ["Masks"]
