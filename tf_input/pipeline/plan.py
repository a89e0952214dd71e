"""How a split is read: which records make up each batch, who reads them and who decodes them."""

import dataclasses
import functools
import logging
import random
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.epochs.selection import Selection
from tf_input.epochs.share import Share
from tf_input.pipeline import memory
from tf_input.pipeline.inputs import HeldInputs, RecordInputs, SplitInputs
from tf_input.read_config import ReadConfig
from tf_input.storage.record_reader import RecordReader

_logger = logging.getLogger("tf_input")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A batch is a function of the seed, the epoch and the step alone, whoever asks for it, on any number of hosts.

    Attributes:
        config: The options with which the split is read, its `hosts` settled.
        kind: The order of an epoch: "window", "exact", or None for that in which records lie in the shards.
        share: The rows of the batches that this host reads.
        decoder: The decoder that makes a batch of them.
        reader: The reader of the records; None if all examples are in memory.
        held: The examples in memory, as `memory.load` gives them; None if they are read.
        lanes: A function from an epoch and places of it to their lanes, of a part of a mix: see `RecordInputs`.
    """

    config: ReadConfig
    kind: str | None
    share: Share
    decoder: ExampleDecoder
    reader: RecordReader | None = None
    held: memory.Held | None = None
    lanes: Callable[[int, np.ndarray], np.ndarray] | None = None

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
        """The plan of a reader, or of what is held in memory.

        Raises:
            ValueError: There is no batch, or fewer than `start_step`, or hosts can't have equal parts of them.
        """
        num_examples = held.num_examples if reader is None else reader.num_examples
        share = make_share(split, num_examples, config, bool(decoder.targets))
        decoder = dataclasses.replace(decoder, has_padding=share.has_padding)
        return cls(config, kind, share, decoder, reader, held)

    @property
    def selection(self) -> Selection | None:
        """The selection of the records that an epoch has; None: each once."""
        return self.held.selection if self.reader is None else self.reader.selection

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch."""
        return self.share.num_batches

    @functools.cached_property
    def seed(self) -> int:
        """All that is drawn depends on it: the one that was given, or else any."""
        return draw_seed() if self.config.seed is None else self.config.seed

    @property
    def parts(self) -> tuple["Plan", ...]:
        """Itself: a split has no other parts, as a mix has."""
        return (self,)

    @property
    def has_all_rows(self) -> bool:
        """Whether each batch has all rows that there are, in their order."""
        return self.share.hosts[0] == 1 and self.config.on_error == "raise"

    @property
    def static_size(self) -> int | None:
        """Rows that each batch has here; None: that differs."""
        return self.share.local_size if self.config.drop_remainder else None

    @property
    def batch_decoder(self) -> BatchDecoder:
        """What `decode` decodes with."""
        return BatchDecoder((self.decoder,))

    def open_inputs(self) -> SplitInputs:
        """What batches are made of, for who makes them one after the other."""
        return self.make_inputs()

    @property
    def make_inputs(self) -> Callable[[], SplitInputs]:
        """`open_inputs` as a function that holds nothing large: TensorFlow never lets go of what a generator calls."""
        if self.reader is None:
            return functools.partial(HeldInputs, self.share, self.seed, self.kind in ("window", "exact"), self.held.numbers, self.held.selection)
        read_buffer = self.config.read_buffer
        return functools.partial(RecordInputs, self.share, self.seed, self.kind, self.reader, read_buffer, lanes=self.lanes)

    def look_up(self, inputs: tf.Tensor) -> tf.Tensor | dict[str, Any]:
        """Features of what is held, by its numbers, int64 [batch]; serialized examples, string [batch], as they are."""
        return inputs if self.held is None else self.held.gather(inputs)

    def decode(self, inputs: Sequence[tf.Tensor], seed: tf.Tensor | None, rows: Sequence[tf.Tensor] | None) -> Any:
        """Makes a batch of its inputs: `x`, `(x, y)` or `(x, y, weight)`.

        Args:
            inputs: For each part, string [n], serialized examples, or int64 [n], numbers of what is held.
            seed, rows: The seed, and the rows of the batch, as `BatchDecoder` takes them.
        """
        return self.batch_decoder([self.look_up(one) for one in inputs], seed, rows)


def draw_seed() -> int:
    """Draws a seed at random, for who gives none."""
    return random.SystemRandom().randrange(1 << 63)


def make_share(split: str, num_examples: int, config: ReadConfig, has_targets: bool) -> Share:
    """The rows of an epoch's batches that this host reads; where some only fill up, and nothing tells which, that is logged.

    Raises:
        ValueError: As `Plan.of`.
    """
    share = Share(split, num_examples, config.batch_size, config.drop_remainder, config.hosts or (1, 0))
    if config.start_step >= share.num_batches:
        raise ValueError(f"start_step={config.start_step}: an epoch of {split} has {share.num_batches} batches; expected one below")
    if share.has_padding and not has_targets:
        message = (
            "%s has no targets, and so no weights to tell by that the last of %d examples on some of the %d hosts only fills up a batch"
        )
        _logger.warning(message, split, share.num_examples, share.hosts[0])
    return share
