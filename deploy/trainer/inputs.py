"""What each worker reads: its rows of every batch, so many for each of its replicas, weights included."""

import dataclasses
import functools
import math
from typing import Any, Callable, Iterator

import tensorflow as tf

import tf_input
from tf_input.epochs.position import Position


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches of a split, on all replicas.

    Attributes:
        make: (epoch, step) -> a data set of (uint8 images, int64 labels, float32 weights), which is distributed: the epoch from
            that step on, if it is then read before another is made.
        position: How many steps an epoch has, the same on all workers, and what its batches depend on: for `tf_input.Backup`.
    """

    make: Callable[[int, int], Any]
    position: Position

    @property
    def num_steps(self) -> int:
        """In an epoch."""
        return self.position.num_batches

    def iterator(self, epoch: int, step: int = 0) -> Iterator:
        """The batches of an epoch, or what is left of them."""
        return iter(self.make(epoch, step))


def training_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    class_weight: str | dict[int, float] | None = None,
    service: str | None = None,
    limit_steps: int | None = None,
    **options: Any,
) -> Batches:
    """Full batches. They depend on the seed, the epoch and the step alone (through a service also on the workers' pace), so that
    a training that goes on later, on as many workers or not, reads what it would have read.

    Nothing is sharded automatically: each worker reads its rows of each batch, so that no image is decoded in vain. A remainder is
    left out, another one in each epoch.

    Args:
        batch_size: Of all replicas together.
        class_weight: As `tf_input.ReadConfig` has it: "balanced", or label -> weight in the loss; None: all count 1.
        service: A tf.data service that reads in this process's place; an epoch is then read from its beginning.
        limit_steps: At most so many steps are an epoch.
        **options: Of `tf_input.ReadConfig`, with a seed.

    Raises:
        ValueError: There is not one step to make, or an option is wrong.
    """
    if (num_examples := dataset.num_examples(split)) < batch_size:
        raise ValueError(f"{split} has {num_examples} examples: not one step of {batch_size} images")
    hosts = tf_input.find_hosts(strategy)
    num_rows, num_local = batch_size // strategy.num_replicas_in_sync, strategy.num_replicas_in_sync // hosts[0]
    weights = {} if class_weight is None else class_weight  # labels that are not named have 1: so batches always have weights
    read = {"batch_size": batch_size, "drop_remainder": True, "hosts": hosts, "class_weight": weights, "channels": 3, **options}
    whole = dataset.batches(split, **read, **({} if service is None else {"memory_budget": 0}))  # of which nothing is then held here
    num_steps = min(len(whole), limit_steps or len(whole))

    def distribute(data: tf.data.Dataset, step: int) -> Any:
        def of_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
            return data.rebatch(num_rows, drop_remainder=True).take((num_steps - step) * num_local).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(of_worker)

    distribute_once = functools.cache(functools.partial(distribute, whole))  # for all epochs that are read from that step on

    def make(epoch: int, step: int) -> Any:
        if service is not None:
            return distribute(dataset.batches(split, start_epoch=epoch, start_step=step, service=service, **read), step)
        whole.position.go_to(epoch, step)  # where the next pass begins
        return distribute_once(step)

    return Batches(make, Position(num_batches=num_steps, identity=whole.position.identity))


def evaluation_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    image_size: int,
    limit_steps: int | None = None,
) -> Batches:
    """Every example once, with weight 1. What fills up a last batch has weight 0: other images where workers have no equal part of
    it, and a black one for a replica that has run out of them.
    """
    hosts = tf_input.find_hosts(strategy)
    num_rows, num_local = batch_size // strategy.num_replicas_in_sync, strategy.num_replicas_in_sync // hosts[0]
    read = {"batch_size": batch_size, "image_size": image_size, "hosts": hosts, "shuffle": False, "use_weights": False, "channels": 3}
    read["class_weight"] = {}  # all count 1; what fills up a batch, 0
    num_steps = math.ceil(dataset.num_examples(split) / batch_size)
    num_steps = min(num_steps, limit_steps or num_steps)

    def of_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
        nothing = (tf.zeros([1, image_size, image_size, 3], tf.uint8), tf.zeros([1], tf.int64), tf.zeros([1]))
        data = dataset.batches(split, **read).rebatch(num_rows)
        data = data.concatenate(tf.data.Dataset.from_tensors(nothing).repeat())
        return data.take(num_steps * num_local).prefetch(tf.data.AUTOTUNE)

    distributed = strategy.distribute_datasets_from_function(of_worker)  # the same in each epoch
    return Batches(lambda epoch, step: distributed, Position(num_batches=num_steps))
