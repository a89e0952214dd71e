"""How a mix is read: which records of which part make up each batch."""

import dataclasses
import functools
from typing import Any, Callable, Sequence

import tensorflow as tf

from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.epochs.mixed_order import MixedOrder
from tf_input.epochs.share import Share
from tf_input.pipeline.inputs import Inputs, MixedInputs
from tf_input.pipeline.plan import Plan
from tf_input.read_config import ReadConfig


@dataclasses.dataclass(frozen=True)
class MixedPlan:
    """A plan of several parts, for who reads a `Plan`.

    Attributes:
        config: The options with which the mix is read, its `hosts` settled.
        seed: The seed that all that is drawn depends on.
        order: The order of the mix, which says what examples of what part are where.
        share: The rows of the batches that this host reads.
        parts: The plans of the parts, of which each says how that one is read.
        batch_decoder: The decoder that makes a batch of what each has.
    """

    config: ReadConfig
    seed: int
    order: MixedOrder
    share: Share
    parts: tuple[Plan, ...]
    batch_decoder: BatchDecoder

    has_all_rows = False  # but some for each part
    static_size = None  # of what a part has of a batch

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch."""
        return self.share.num_batches

    @property
    def make_inputs(self) -> Callable[[], Inputs]:
        """A function that makes the inputs of the batches, as `Plan.make_inputs` is."""
        return functools.partial(MixedInputs, self.order, self.share.hosts, [part.make_inputs for part in self.parts])

    def open_inputs(self) -> Inputs:
        """Opens the inputs of the batches, as `Plan.open_inputs` does."""
        return self.make_inputs()

    def decode(self, inputs: Sequence[tf.Tensor], seed: tf.Tensor | None, rows: Sequence[tf.Tensor] | None) -> Any:
        """Decodes a batch, as `Plan.decode` does."""
        return self.batch_decoder([part.look_up(one) for part, one in zip(self.parts, inputs)], seed, rows)
