"""What each trainer reads: its own part, a batch for each of its replicas at a time, weights included."""

import dataclasses
from typing import Any, Callable, Iterator

import tensorflow as tf

import tf_input


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches of a split, on all replicas.

    Attributes:
        make: (epoch, step) -> a data set of (uint8 images, int64 labels, float32 weights), which is distributed: the epoch from
            that step on.
        num_steps: In an epoch; the same for all workers.
    """

    make: Callable[[int, int], Any]
    num_steps: int

    def iterator(self, epoch: int, step: int = 0) -> Iterator:
        """The batches of an epoch, or what is left of them."""
        return iter(self.make(epoch, step))


def training_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    class_weight: dict[int, float] | None = None,
    service: str | None = None,
    limit_steps: int | None = None,
    **options: Any,
) -> Batches:
    """Full batches. They depend on the seed, the epoch and the step alone (through a service also on the workers' pace), so that
    a training that goes on later reads what it would have read.

    Nothing is sharded automatically: each worker reads a part of its own, so that no record is read by two and no image
    decoded in vain. As all workers make as many steps, a remainder is left out, another one in each epoch.

    Args:
        batch_size: Of one replica.
        class_weight: Label -> weight in the loss.
        service: A tf.data service that reads in this process's place; an epoch is then read from its beginning.
        limit_steps: At most so many steps are an epoch.
        **options: Of `tf_input.ReadConfig`, with a seed.

    Raises:
        ValueError: There is not one step to make, or an option is wrong.
    """
    hosts = tf_input.find_hosts(strategy)
    num_local = strategy.num_replicas_in_sync // hosts[0]
    if not (num_steps := dataset.num_examples(split) // hosts[0] // (batch_size * num_local)):
        raise ValueError(
            f"{split} has {dataset.num_examples(split)} examples: not one step of {batch_size} images on each of "
            f"{hosts[0]} x {num_local} replicas"
        )
    read = {"batch_size": batch_size, "drop_remainder": True, "hosts": hosts, **options}
    if service is None:  # a host that has shards of its own may have a little less
        num_steps = int(dataset.batches(split, **read).cardinality()) // num_local
    num_steps = min(num_steps, limit_steps or num_steps)
    table = [1.0] * len(dataset.class_names) if class_weight is None else [class_weight[i] for i in sorted(class_weight)]

    def make(epoch: int, step: int) -> Any:
        def of_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
            data = dataset.batches(split, start_epoch=epoch, start_step=step * num_local, service=service, **read)
            if service is not None:  # should one of its workers die, the epoch's last steps are those of a second pass
                data = data.repeat()
            data = data.map(lambda images, labels: (images, labels, tf.gather(tf.constant(table, tf.float32), labels)))
            return data.take((num_steps - step) * num_local).prefetch(tf.data.AUTOTUNE)

        return strategy.distribute_datasets_from_function(of_worker)

    return Batches(make, num_steps)


def evaluation_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    image_size: int,
    limit_steps: int | None = None,
) -> Batches:
    """Every example once, with weight 1; a replica that has run out of them gets a black image of weight 0."""
    hosts = num_hosts, index = tf_input.find_hosts(strategy)
    num_local = strategy.num_replicas_in_sync // num_hosts
    num_each, num_left = divmod(dataset.num_examples(split), num_hosts)
    num_batches = -(-num_each // batch_size) + (num_left > 0)
    num_steps = -(-num_batches // num_local)
    num_steps = min(num_steps, limit_steps or num_steps)
    read = {"image_size": image_size, "shuffle": False}

    def of_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
        shape = (1, image_size, image_size, 3)
        data = tf.data.Dataset.from_tensors((tf.zeros(shape, tf.uint8), tf.zeros([1], tf.int64), tf.zeros([1]))).repeat()
        if index < num_left:  # one of those that all have no equal part of
            place = num_hosts * num_each + index
            data = _weighted(dataset.batches(split, batch_size=1, start_step=place, hosts=(1, 0), **read).take(1)).concatenate(data)
        if num_each:
            data = _weighted(dataset.batches(split, batch_size=batch_size, hosts=hosts, **read)).concatenate(data)
        return data.take(num_steps * num_local).prefetch(tf.data.AUTOTUNE)

    return Batches(lambda epoch, step: strategy.distribute_datasets_from_function(of_worker), num_steps)


def _weighted(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.map(lambda images, labels: (images, labels, tf.ones_like(labels, tf.float32)))
