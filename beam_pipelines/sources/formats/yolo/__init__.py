"""Source `yolo`: YOLO's text files in the layouts of Ultralytics, Roboflow and Darknet."""

from beam_pipelines.sources.formats.yolo.yolo import Yolo

__all__ = ["Yolo"]
