"""Source `coco`: COCO's JSON files."""

from beam_pipelines.sources.formats.coco.coco import Coco

__all__ = ["Coco"]
