"""The plan of a mixture, which defines the records of each component in each batch."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Sequence

from tf_input.decoding.batch_decoder import BatchDecoder
from tf_input.epochs.mixed_order import MixedOrder
from tf_input.epochs.share import Share
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.inputs import Inputs, MixedInputs
from tf_input.pipeline.plan import Plan
from tf_input.read_config import ReadConfig


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

    def open_inputs(self) -> Inputs:
        """Opens the inputs of the batches, like `Plan.open_inputs`."""
        return self.make_inputs()

    def decode(self, inputs: Sequence[tf.Tensor], seed: tf.Tensor | None, slots: Sequence[tf.Tensor] | None) -> Any:
        """Decodes a batch, like `Plan.decode`."""
        return self.batch_decoder([component.look_up(item) for component, item in zip(self.components, inputs)], seed, slots)
