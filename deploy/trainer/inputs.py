"""Creates the batches for training and evaluation. Each worker reads only its share of each global batch."""

import dataclasses
import functools
import math
from typing import Any, Callable, Iterator

import tensorflow as tf

import tf_input
from tf_input.epochs.iterator_state import IteratorState


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of a split, distributed to all replicas.

    Attributes:
        make: A function that maps (epoch, step) to a distributed dataset of (uint8 images, int64 labels, float32
            weights). The dataset yields the remaining batches of the epoch from that step, and must be read before the
            next dataset is made.
        iterator_state: The iterator state for `tf_input.Checkpoint`, with the number of steps per epoch, which is equal
            on all workers, and the fingerprint of the batches.
    """

    make: Callable[[int, int], Any]
    iterator_state: IteratorState

    @property
    def num_steps(self) -> int:
        """The number of steps per epoch."""
        return self.iterator_state.num_batches

    def iterator(self, epoch: int, step: int = 0) -> Iterator:
        """Returns an iterator over the batches of an epoch, starting at the given step."""
        return iter(self.make(epoch, step))


def training_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    class_weight: str | dict[int, float] | None = None,
    limit_steps: int | None = None,
    **options: Any,
) -> Batches:
    """Returns full batches for training, which depend only on the seed, the epoch and the step.

    Therefore a resumed run reads the same batches, even with a different number of workers. Automatic sharding is
    disabled, because each worker already reads only its part of each batch. An incomplete last batch is dropped. The
    dropped examples differ between epochs.

    Args:
        batch_size: The total batch size of all replicas.
        class_weight: "balanced", or a mapping from labels to weights in the loss, as in `tf_input.ReadConfig`. Default:
            None, weights of 1.
        limit_steps: The maximum number of steps per epoch.
        **options: Options of `tf_input.ReadConfig`, including a seed.

    Raises:
        ValueError: The split has fewer examples than one batch, or an option is invalid.
    """
    if (num_examples := dataset.num_examples(split)) < batch_size:
        raise ValueError(
            f"split {split} has {num_examples} examples, fewer than one batch of {batch_size}. Reduce --batch_size."
        )
    hosts = tf_input.find_hosts(strategy)
    num_rows, num_local = batch_size // strategy.num_replicas_in_sync, strategy.num_replicas_in_sync // hosts[0]
    # Labels that the mapping omits have weight 1, so batches always have weights.
    weights = {} if class_weight is None else class_weight
    read = {"batch_size": batch_size, "drop_remainder": True, "hosts": hosts, "class_weight": weights, "channels": 3, **options}
    all_batches = dataset.batches(split, **read)
    num_steps = min(len(all_batches), limit_steps or len(all_batches))

    def distribute(data: tf.data.Dataset, step: int) -> Any:
        def of_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
            return data.rebatch(num_rows, drop_remainder=True).take((num_steps - step) * num_local).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(of_worker)

    # Reused by all epochs that start at this step.
    distribute_once = functools.cache(functools.partial(distribute, all_batches))

    def make(epoch: int, step: int) -> Any:
        all_batches.iterator_state.go_to(epoch, step)  # The start of the next iteration.
        return distribute_once(step)

    return Batches(make, IteratorState(num_steps, fingerprint=all_batches.iterator_state.fingerprint))


def evaluation_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    image_size: int,
    limit_steps: int | None = None,
) -> Batches:
    """Returns batches for evaluation. Every example occurs once and has weight 1.

    The last batch is padded with examples of weight 0. If the last batch can't be divided equally among the workers,
    arbitrary images are used as padding. A replica that has no images in the last batch gets a black image.
    """
    hosts = tf_input.find_hosts(strategy)
    num_rows, num_local = batch_size // strategy.num_replicas_in_sync, strategy.num_replicas_in_sync // hosts[0]
    read = {"batch_size": batch_size, "image_size": image_size, "hosts": hosts, "shuffle": False, "with_keys": True, "channels": 3}
    num_steps = math.ceil(dataset.num_examples(split) / batch_size)
    num_steps = min(num_steps, limit_steps or num_steps)

    def weigh(batch: tuple[tf.Tensor, ...], keys: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return *batch[:2], tf.cast(keys != "", tf.float32)  # Padding has no key.

    def of_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
        nothing = (tf.zeros([1, image_size, image_size, 3], tf.uint8), tf.zeros([1], tf.int64), tf.zeros([1]))
        data = dataset.batches(split, **read).map(weigh).rebatch(num_rows)
        data = data.concatenate(tf.data.Dataset.from_tensors(nothing).repeat())
        return data.take(num_steps * num_local).prefetch(tf.data.AUTOTUNE)

    distributed = strategy.distribute_datasets_from_function(of_worker)  # The batches are equal in each epoch.
    return Batches(lambda epoch, step: distributed, IteratorState(num_steps))
