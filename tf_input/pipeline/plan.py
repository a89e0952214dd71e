"""The plan of a split or of a mixture, which defines the records, the reader and the decoder of each batch."""

from __future__ import annotations

import dataclasses
import functools
import logging
import random
from typing import Any, Callable, Sequence

import numpy as np

from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.epochs.mixed_order import MixedOrder
from tf_input.epochs.selection import Selection
from tf_input.epochs.share import Share
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline import memory
from tf_input.pipeline.inputs import CachedInputs, Inputs, MixedInputs, RecordInputs, SplitInputs
from tf_input.read_config import ReadConfig
from tf_input.storage.record_reader import RecordReader

_logger = logging.getLogger("tf_input")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a split. A batch depends only on the seed, the epoch and the step, for any number of hosts.

    Attributes:
        config: The reading options, with definite `hosts`.
        kind: The order of an epoch: "window", "exact", "key", or None for the order of the shards.
        share: The part of each batch that this host reads.
        decoder: The decoder of examples.
        reader: The reader of the records; None if all examples are cached in memory.
        cached: The cached examples, from `memory.load`; None if records are read.
        virtual_shards: A function from an epoch and indices in it to virtual shards, for a component of a mixture; see
            `RecordInputs`.
    """

    config: ReadConfig
    kind: str | None
    share: Share
    decoder: ExampleDecoder
    reader: RecordReader | None = None
    cached: memory.CachedExamples | None = None
    virtual_shards: Callable[[int, np.ndarray], np.ndarray] | None = None

    @classmethod
    def of(
        cls,
        split: str,
        config: ReadConfig,
        kind: str | None,
        decoder: ExampleDecoder,
        reader: RecordReader | None = None,
        cached: memory.CachedExamples | None = None,
    ) -> "Plan":
        """Creates the plan of a split, which is read with `reader`, or is cached in memory if `reader` is None.

        Raises:
            ValueError: There is no batch, or the batch size is not a multiple of the number of hosts.
        """
        num_examples = cached.num_examples if reader is None else reader.num_examples
        share = make_share(split, num_examples, config, decoder.has_targets)
        decoder = dataclasses.replace(decoder, has_padding=share.has_padding)
        return cls(config, kind, share, decoder, reader, cached)

    @property
    def selection(self) -> Selection | None:
        """The selection of records for an epoch; None if an epoch contains each record once."""
        return self.cached.selection if self.reader is None else self.reader.selection

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch."""
        return self.share.num_batches

    @functools.cached_property
    def seed(self) -> int:
        """The random seed for shuffling and augmentation, which is drawn if no seed is given."""
        return draw_seed() if self.config.seed is None else self.config.seed

    @property
    def components(self) -> tuple["Plan", ...]:
        """The plan itself, as the only component."""
        return (self,)

    @property
    def has_all_slots(self) -> bool:
        """Whether this host receives every example of each global batch, in order."""
        return self.share.hosts[0] == 1 and not self.config.skip_corrupt

    @property
    def static_size(self) -> int | None:
        """The number of examples in each batch on this host; None if it varies."""
        return self.share.local_size if self.config.drop_remainder else None

    @property
    def batch_decoder(self) -> BatchDecoder:
        """The decoder that `decode` uses."""
        return BatchDecoder((self.decoder,))

    @property
    def make_inputs(self) -> Callable[[], SplitInputs]:
        """A function that opens the inputs. TensorFlow never frees the function, so it does not refer to the plan."""
        if self.reader is None:
            return functools.partial(CachedInputs, self.share, self.seed, self.kind in ("window", "exact"), self.cached.numbers, self.cached.selection)
        read_buffer = self.config.read_buffer
        return functools.partial(RecordInputs, self.share, self.seed, self.kind, self.reader, read_buffer, virtual_shards=self.virtual_shards)

    def look_up(self, inputs: tf.Tensor) -> tf.Tensor | dict[str, Any]:
        """Converts indices of cached examples, int64 [batch], to their features. Records are returned unchanged."""
        return inputs if self.cached is None else self.cached.gather(inputs)

    def decode(self, inputs: Sequence[tf.Tensor], seed: tf.Tensor | None, slots: Sequence[tf.Tensor] | None) -> Any:
        """Decodes the inputs of a batch to `x`, `(x, y)` or `(x, y, weight)`.

        Args:
            inputs: For each component, serialized examples, string [n], or indices of cached examples, int64 [n].
            seed, slots: The seed and the batch slots, as in `BatchDecoder`.
        """
        return self.batch_decoder([self.look_up(item) for item in inputs], seed, slots)


@dataclasses.dataclass(frozen=True)
class MixedPlan:
    """A plan for several components, with the same interface as `Plan`.

    Attributes:
        config: The reading options, with definite `hosts`.
        seed: The seed of shuffling and augmentation.
        order: The order of the mixture, which defines the examples of each component in each batch.
        share: The part of each batch that this host reads.
        components: The plan of each component.
        batch_decoder: The decoder, which joins the components.
    """

    config: ReadConfig
    seed: int
    order: MixedOrder
    share: Share
    components: tuple[Plan, ...]
    batch_decoder: BatchDecoder

    has_all_slots = False  # each component has only some batch slots
    static_size = None  # the number of a component's examples in a batch varies

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch."""
        return self.share.num_batches

    @property
    def make_inputs(self) -> Callable[[], Inputs]:
        """A function that creates the inputs of the batches, like `Plan.make_inputs`."""
        return functools.partial(MixedInputs, self.order, self.share.hosts, [component.make_inputs for component in self.components])

    def decode(self, inputs: Sequence[tf.Tensor], seed: tf.Tensor | None, slots: Sequence[tf.Tensor] | None) -> Any:
        """Decodes a batch, like `Plan.decode`."""
        return self.batch_decoder([component.look_up(item) for component, item in zip(self.components, inputs)], seed, slots)


def draw_seed() -> int:
    """Returns a random seed, which is used if no seed is given."""
    return random.SystemRandom().randrange(1 << 63)


def make_share(split: str, num_examples: int, config: ReadConfig, has_targets: bool) -> Share:
    """Returns the part of each batch that this host reads. Logs a warning if a batch has padding but no targets,
    because only the example weights of targets can mark padding.

    Raises:
        ValueError: As in `Plan.of`.
    """
    share = Share(split, num_examples, config.batch_size, config.drop_remainder, config.hosts or (1, 0))
    if share.has_padding and not has_targets:
        message = (
            "%s has no targets, so there are no sample weights that mark padding: the last of %d examples on some of "
            "the %d hosts is padding."
        )
        _logger.warning(message, split, share.num_examples, share.hosts[0])
    return share
