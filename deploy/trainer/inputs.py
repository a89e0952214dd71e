"""What each trainer reads: its own shards, a batch for each of its replicas at a time, weights included."""

import dataclasses
import hashlib
from typing import Any, Callable, Iterator

import tensorflow as tf

import tf_input


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches of a split, on all replicas.

    Attributes:
        make: Epoch -> a data set of (uint8 images, int64 labels, float32 weights), which is distributed.
        num_steps: In an epoch; the same for all workers.
    """

    make: Callable[[int], Any]
    num_steps: int

    def iterator(self, epoch: int) -> Iterator:
        """The batches of an epoch."""
        return iter(self.make(epoch))


@dataclasses.dataclass(frozen=True)
class Replicas:
    """How the work is divided: `num_workers` processes with `num_local` replicas each."""

    num_workers: int
    num_local: int

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy) -> "Replicas":
        total = strategy.num_replicas_in_sync
        is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        num_workers = total // len(strategy.extended.worker_devices) if is_multi_worker else 1
        return cls(num_workers, total // num_workers)


def training_batches(
    dataset: tf_input.PreparedDataset,
    split: str,
    strategy: tf.distribute.Strategy,
    batch_size: int,
    seed: int,
    class_weight: dict[int, float] | None = None,
    service: str | None = None,
    limit_steps: int | None = None,
    **options: Any,
) -> Batches:
    """Full batches. An epoch's order and augmentation depend on the seed and the epoch's number alone (through a service its
    order depends on the workers' pace too), so that a training that goes on later reads what it would have read.

    Nothing is sharded automatically: each worker names its shards itself, so that no file is read by two and no image
    decoded in vain. As all workers make as many steps, the largest shares leave a remainder out, another one in each epoch.

    Args:
        batch_size: Of one replica.
        seed: Of all epochs.
        class_weight: Label -> weight in the loss.
        service: A tf.data service that reads in this process's place.
        limit_steps: At most so many steps are an epoch.
        **options: Of `tf_input.ReadConfig`.

    Raises:
        ValueError: There is not one step to make, or an option is wrong.
    """
    replicas = Replicas.of(strategy)
    shares = [tf_input.worker_share(dataset, split, index, replicas.num_workers) for index in range(replicas.num_workers)]
    counts = [share.num_examples(split) for share in shares]
    num_steps = min(counts) // (batch_size * replicas.num_local)
    if not num_steps:
        raise ValueError(
            f"{split} has {dataset.num_examples(split)} examples in {len(dataset.manifest.splits[split])} shards: not one step "
            f"of {batch_size} images on each of {replicas.num_workers} x {replicas.num_local} replicas"
        )
    num_steps = min(num_steps, limit_steps or num_steps)
    table = [1.0] * len(dataset.label_names) if class_weight is None else [class_weight[i] for i in sorted(class_weight)]

    def make(epoch: int) -> Any:
        read = {"batch_size": batch_size, "drop_remainder": True, "seed": _mix(seed, epoch), **options}

        def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
            share = shares[context.input_pipeline_id]
            if service is None:
                data = share.batches(split, **read)
            else:
                data = tf_input.service_batches(share, split, service, **read)
            data = data.map(lambda images, labels: (images, labels, tf.gather(tf.constant(table, tf.float32), labels)))
            # Without end: should a worker of the service die, the epoch's last steps are those of a second pass.
            return data.repeat().take(num_steps * replicas.num_local).prefetch(tf.data.AUTOTUNE)

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
    replicas = Replicas.of(strategy)
    shares = [tf_input.worker_share(dataset, split, index, replicas.num_workers) for index in range(replicas.num_workers)]
    num_steps = max(-(-share.num_examples(split) // (batch_size * replicas.num_local)) for share in shares)
    num_steps = min(num_steps, limit_steps or num_steps)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        share = shares[context.input_pipeline_id]
        shape = (1, image_size, image_size, 3)
        data = tf.data.Dataset.from_tensors((tf.zeros(shape, tf.uint8), tf.zeros([1], tf.int64), tf.zeros([1]))).repeat()
        if share.num_examples(split):
            real = share.batches(split, batch_size=batch_size, image_size=image_size, shuffle=False)
            data = real.map(lambda images, labels: (images, labels, tf.ones_like(labels, tf.float32))).concatenate(data)
        return data.take(num_steps * replicas.num_local).prefetch(tf.data.AUTOTUNE)

    return Batches(lambda epoch: strategy.distribute_datasets_from_function(of_worker), num_steps)


def _mix(seed: int, epoch: int) -> int:
    """A 63-bit number that depends on both."""
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
