"""Collects the valid records of a shard, to compare them with its index and its catalog."""

from typing import Any

import google_crc32c

from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record
from tf_input.serialized_example import SerializedExample


class ValidRecords:
    """The valid records of a shard, in record order.

    Attributes:
        indices: The index of each record among all records of the shard.
        rows: The expected index row of each record.
        keys: The key of each record.
        examples: The expected catalog values of each record, by feature.
        image_crcs: The CRC-32C of each image, or of the whole example if it has no image.
    """

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.rows: list[tuple[int, int, int, int]] = []
        self.keys: list[bytes] = []
        self.examples: list[dict[str, list[Any]]] = []
        self.image_crcs: list[int] = []

    def add(self, index: int, row: tuple[int, int, int, int], record: Record, example: SerializedExample, values: dict[str, list[Any]]) -> None:
        start = row[1] - record.offset - HEADER_BYTES
        key = example.values("key")[0] if "key" in example.features else b""
        self.examples.append(values)
        self.indices.append(index)
        self.rows.append(row)
        self.keys.append(key)
        self.image_crcs.append(google_crc32c.value(record.data[start : start + row[2]]))
