"""How a split is read: which records make up each batch, who reads them and who decodes them."""

import dataclasses
import functools
import logging
import random
from typing import Any, Callable

import tensorflow as tf

from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.epochs.selection import Selection
from tf_input.epochs.share import Share
from tf_input.pipeline import memory
from tf_input.pipeline.inputs import HeldInputs, Inputs, RecordInputs
from tf_input.read_config import ReadConfig
from tf_input.storage.record_reader import RecordReader

_logger = logging.getLogger("tf_input")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A batch is a function of the seed, the epoch and the step alone, whoever asks for it, on any number of hosts.

    Attributes:
        config: How the split is read, its `hosts` settled.
        kind: The order of an epoch: "window", "exact", or None for that in which records lie in the shards.
        share: Which rows of the batches this host reads.
        decoder: Makes a batch of them.
        reader: Reads the records; None if all examples are in memory:
        held: as `memory.load` gives them.
    """

    config: ReadConfig
    kind: str | None
    share: Share
    decoder: ExampleDecoder
    reader: RecordReader | None = None
    held: memory.Held | None = None

    @classmethod
    def of(
        cls,
        split: str,
        config: ReadConfig,
        kind: str | None,
        decoder: ExampleDecoder,
        reader: RecordReader | None = None,
        held: memory.Held | None = None,
    ) -> "Plan":
        """Of a reader, or of what is held.

        Raises:
            ValueError: There is no batch, or fewer than `start_step`, or hosts can't have equal parts of them.
        """
        num_examples = held.num_examples if reader is None else reader.num_examples
        share = Share(split, num_examples, config.batch_size, config.drop_remainder, config.hosts or (1, 0))
        if config.start_step >= share.num_batches:
            raise ValueError(
                f"start_step={config.start_step}: an epoch of {split} has {share.num_batches} batches; expected one below"
            )
        if share.has_padding and not decoder.targets:
            message = "%s has no targets, and so no weights to tell by that the last of %d examples on some of the %d hosts only fills up a batch"
            _logger.warning(message, split, share.num_examples, share.hosts[0])
        decoder = dataclasses.replace(decoder, has_padding=share.has_padding)
        return cls(config, kind, share, decoder, reader, held)

    @property
    def selection(self) -> Selection | None:
        """Which records an epoch has; None: each once."""
        return self.held.selection if self.reader is None else self.reader.selection

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch."""
        return self.share.num_batches

    @functools.cached_property
    def seed(self) -> int:
        """All that is drawn depends on it: the one that was given, or else any."""
        return random.SystemRandom().randrange(1 << 63) if self.config.seed is None else self.config.seed

    def open_inputs(self) -> Inputs:
        """What batches are made of, for who makes them one after the other."""
        return self.make_inputs()

    @property
    def make_inputs(self) -> Callable[[], Inputs]:
        """`open_inputs` as a function that holds nothing large: TensorFlow never lets go of what a generator calls."""
        if self.reader is None:
            return functools.partial(HeldInputs, self.share, self.seed, self.kind is not None, self.held.numbers, self.held.selection)
        return functools.partial(RecordInputs, self.share, self.seed, self.kind, self.reader, self.config.read_buffer)

    def decode(self, inputs: tf.Tensor, seed: tf.Tensor | None, rows: tf.Tensor | None) -> Any:
        """Makes a batch of its inputs: `x`, `(x, y)` or `(x, y, weight)`.

        Args:
            inputs: string [batch], serialized examples, or int64 [batch], numbers of what is held.
            seed, rows: As `ExampleDecoder.outputs` has them.
        """
        parsed = self.decoder.parse_batch(inputs) if self.held is None else self.held.gather(inputs)
        return self.decoder.outputs(parsed, seed, rows)
