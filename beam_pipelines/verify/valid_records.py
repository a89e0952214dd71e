"""Collects the valid records of a shard, to compare them with its index and its catalog."""

import array
from typing import Any, Sequence

import google_crc32c
import numpy as np

from beam_pipelines.tfrecord.joined_crcs import inner_crcs
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record
from tf_input.serialized_example import SerializedExample


class ValidRecords:
    """The valid records of a shard, in record order.

    Attributes:
        indices: The index of each record among all records of the shard.
        rows: The expected index row of each record.
        keys: The key of each record.
        examples: The expected catalog values of each record.
    """

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.rows: list[tuple[int, int, int, int]] = []
        self.keys: list[bytes] = []
        self.examples: list[dict[str, list[Any]]] = []
        self._chunks = array.array("q")

    def add(self, index: int, row: tuple[int, int, int, int], record: Record, example: SerializedExample, in_catalog: Sequence[str]) -> None:
        start = row[1] - record.offset - HEADER_BYTES
        before, behind = record.data[:start], record.data[start + row[2] :]
        key = example.values("key")[0] if "key" in example.features else b""
        self.examples.append({name: example.values(name) for name in in_catalog})
        self.indices.append(index)
        self.rows.append(row)
        self.keys.append(key)
        self._chunks.extend((record.data_crc32c(), google_crc32c.value(before), row[2], google_crc32c.value(behind), len(behind)))

    def image_crcs(self) -> list[int]:
        """Returns the CRC-32C of each image, or of the whole example if it has no image."""
        return inner_crcs(*np.frombuffer(self._chunks, np.int64).reshape(-1, 5).T).tolist()
