"""ShufflePayloads: carries image bytes through the runner's own shuffle (`--shuffle_payload=inline`)."""

from typing import Iterable

import apache_beam as beam

from beam_pipelines.config import PrepareConfig
from beam_pipelines.payloads import Bucket, spool_bucket


class ShufflePayloads(beam.PTransform):
    """(bucket, packed payload) -> packed `References`, which point to where the bytes have arrived."""

    def __init__(self, config: PrepareConfig) -> None:
        super().__init__()
        self._spool_directory = config.spool_directory

    def expand(self, payloads: beam.PCollection) -> beam.PCollection:
        return (
            payloads
            | "GroupByBucket" >> beam.GroupByKey()
            | "SpoolInOrder" >> beam.Map(spool_one, self._spool_directory)
        )


def spool_one(element: tuple[Bucket, Iterable[bytes]], spool_directory: str) -> bytes:
    return spool_bucket(element[1], spool_directory)
