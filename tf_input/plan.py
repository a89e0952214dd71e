"""How a split is read: which records make up each batch, who reads them and who decodes them."""

import dataclasses
from typing import Any, Mapping, Sequence

import tensorflow as tf

from tf_input import ladder, memory
from tf_input.dataset_format import ShardInfo
from tf_input.distribute import Part, divide
from tf_input.example_decoder import ExampleDecoder
from tf_input.order import Order
from tf_input.position import Position
from tf_input.read_config import ReadConfig
from tf_input.records import RecordReader

_BLOCK_BYTES = 1 << 20  # that are read at a time: a disk, or an object store, is as quick with more
_MIN_BLOCK, _MAX_BLOCK = 16, 1024  # records
_WINDOW_BYTES = 64 << 20  # within which records are mixed; two of these are held
_MIN_WINDOW_BLOCKS = 4
_GROUP_BYTES, _GROUP_RECORDS = 4 << 20, 4096  # that are read by one call of Python, if a batch has no more


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How many records are read at a time, and mixed.

    Attributes:
        block: Records that lie together.
        window: Records that are mixed.
        group: Records that one call asks for.
    """

    block: int
    window: int
    group: int

    @classmethod
    def of(cls, kind: str | None, shards: Sequence[ShardInfo]) -> "Blocks":
        """For the records of shards; in an exact order each is read alone."""
        mean = max(1, sum(shard.num_bytes for shard in shards) // max(1, sum(shard.num_examples for shard in shards)))
        group = min(_GROUP_BYTES // mean, _GROUP_RECORDS)
        if kind == "exact":
            return cls(1, 1, group)
        block = min(max(_BLOCK_BYTES // mean, _MIN_BLOCK), _MAX_BLOCK)
        if kind is None:  # what is read one after the other need not be kept
            return cls(block, block, group)
        return cls(block, block * max(_WINDOW_BYTES // (block * mean), _MIN_WINDOW_BLOCKS), group)

    @property
    def num_kept(self) -> int:
        """Blocks that are held while two windows are read."""
        return 2 * (self.window // self.block + 1)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A batch is a function of the seed, the epoch and the step alone, whoever asks for it.

    Attributes:
        config: How the split is read.
        order: Of its records, in an epoch.
        decoder: Makes a batch of them.
        num_batches: In an epoch.
        group: Batches that are read at a time.
        reader: Reads them; None if all are in memory:
        held: by name, as `memory.load` gives them.
    """

    config: ReadConfig
    order: Order
    decoder: ExampleDecoder
    num_batches: int
    group: int
    reader: RecordReader | None = None
    held: Mapping[str, Any] | None = None

    @classmethod
    def of_records(
        cls, split: str, config: ReadConfig, kind: str | None, decoder: ExampleDecoder, reader: RecordReader, part: Part, blocks: Blocks
    ) -> "Plan":
        """Of records that are read from shards.

        Raises:
            ValueError: There is no batch, or fewer than `start_step`.
        """
        order = Order(reader.num_examples, kind, blocks.block, blocks.window, part.first, part.count)
        return cls(config, order, decoder, _num_batches(split, config, part.count), max(1, blocks.group // config.batch_size), reader)

    @classmethod
    def of_arrays(
        cls, split: str, config: ReadConfig, kind: str | None, decoder: ExampleDecoder, held: Mapping[str, Any]
    ) -> "Plan":
        """Of examples that are in memory; errors as in `of_records`."""
        num_examples = memory.num_examples(held)
        part = divide(split, [num_examples], config.hosts, kind)
        blocks = Blocks.of(kind, [])
        order = Order(num_examples, kind, blocks.block, blocks.window, part.first, part.count)
        group = max(1, blocks.group // config.batch_size)
        return cls(config, order, decoder, _num_batches(split, config, part.count), group, held=held)

    def read(self, position: Position, prefetch: bool = True) -> tf.data.Dataset:
        """The batches of a pass from where the position says; see `Position`.

        Args:
            position: Where each pass begins.
            prefetch: Whether batches are made before they are asked for.
        """
        if self.held is None:
            data = ladder.read_records(self.reader, self.order, self.decoder, self.config, self.num_batches, position, self.group)
        else:
            data = ladder.read_arrays(self._gather, self.order, self.config, self.num_batches, position, self.group)
        return ladder.note_ends(data.prefetch(tf.data.AUTOTUNE) if prefetch else data, position, self.num_batches)

    def _gather(self, numbers: tf.Tensor, seed: tf.Tensor | None) -> Any:
        return self.decoder.outputs(memory.gather(self.held, numbers), seed)


def _num_batches(split: str, config: ReadConfig, num_examples: int) -> int:
    num_batches = config.num_batches(split, num_examples)
    if config.start_step >= num_batches:
        raise ValueError(f"start_step={config.start_step}: an epoch of {split} has {num_batches} batches; expected one below")
    return num_batches
