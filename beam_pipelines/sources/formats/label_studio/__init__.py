"""Source `label_studio`: JSON exports of Label Studio."""

from beam_pipelines.sources.formats.label_studio.label_studio import LabelStudio

__all__ = ["LabelStudio"]
