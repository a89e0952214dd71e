"""Source `tfrecord`: TFRecord and ArrayRecord files."""

from beam_pipelines.sources.formats.tfrecord.tfrecord import TfRecord

__all__ = ["TfRecord"]
