"""Source `yolo`: the text files of YOLO, in the layouts of Ultralytics, Roboflow and Darknet."""

from beam_pipelines.sources.formats.yolo.yolo import Yolo

__all__ = ["Yolo"]
