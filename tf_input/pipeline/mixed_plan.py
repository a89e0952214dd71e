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
        config: How the mix is read, its `hosts` settled.
        seed: All that is drawn depends on it.
        order: Which examples of which part are where.
        share: Which rows of the batches this host reads.
        parts: Plans of the parts, of which each says how that one is read.
        batch_decoder: Makes a batch of what each has.
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
        """As in `Plan`."""
        return functools.partial(MixedInputs, self.order, self.share.hosts, [part.make_inputs for part in self.parts])

    def open_inputs(self) -> Inputs:
        """As in `Plan`."""
        return self.make_inputs()

    def decode(self, inputs: Sequence[tf.Tensor], seed: tf.Tensor | None, rows: Sequence[tf.Tensor] | None) -> Any:
        """As in `Plan`."""
        return self.batch_decoder([part.look_up(one) for part, one in zip(self.parts, inputs)], seed, rows)
