"""Source `label_studio`: Label Studio's JSON files."""

from beam_pipelines.sources.formats.label_studio.label_studio import LabelStudio

__all__ = ["LabelStudio"]
