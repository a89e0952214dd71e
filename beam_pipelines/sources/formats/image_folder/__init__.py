"""Source `image_folder`: class folders."""

from beam_pipelines.sources.formats.image_folder.image_folder import ImageFolder

__all__ = ["ImageFolder"]
