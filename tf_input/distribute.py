"""Reading on many machines: each trainer its own shards, or a tf.data service that reads for them."""

import copy
import dataclasses
from typing import Any

import tensorflow as tf

from tf_input.dataset import PreparedDataset
from tf_input.read_config import ReadConfig


def worker_share(dataset: PreparedDataset, split: str, worker_index: int, num_workers: int) -> PreparedDataset:
    """The data set as one of many workers reads it: every so many-th shard of a split, and of the other splits all.

    The workers' shares are disjoint, and together they are the split. As the data set was shuffled as a whole, each is a fair
    sample of it. A share that is empty has 0 examples; `batches` refuses it.

    Raises:
        ValueError: There is no such split or worker.
    """
    if not 0 <= worker_index < num_workers:
        raise ValueError(f"worker_index={worker_index}: expected 0 to {num_workers - 1}")
    dataset.num_examples(split)
    splits = {**dataset.manifest.splits, split: dataset.manifest.splits[split][worker_index::num_workers]}
    share = copy.copy(dataset)
    share.manifest = dataclasses.replace(dataset.manifest, splits=splits)
    return share


def service_batches(dataset: PreparedDataset, split: str, service: str, **options: Any) -> tf.data.Dataset:
    """`dataset.batches`, read, decoded and augmented by the workers of a tf.data service.

        train = tf_input.service_batches(flowers, "train", "grpc://dispatcher:5050", batch_size=128, image_size=224)

    Each pass has every example exactly once, as long as no worker of the service dies: shards are handed to workers one by one;
    there should be many to a worker. A pass waits for a worker that died until it is back at its address, and leaves
    out what it had not delivered. The order depends on which worker is quicker, not on the seed alone; and every pass draws
    the same crops and flips, so make a data set with another seed for each epoch. Its cardinality is unknown; without such a
    death it is that of `dataset.batches`.

    Args:
        dataset: The workers read it under the same path or URL as this process.
        split: One of the data set's splits.
        service: The dispatcher, such as "grpc://dispatcher:5050".
        **options: The attributes of `ReadConfig`.

    Raises:
        ValueError: As in `batches`; or drop_remainder leaves nothing.
    """
    config = ReadConfig(**options)
    config.num_batches(split, dataset.num_examples(split))
    data = dataset.uncounted_batches(split, dataclasses.replace(config, drop_remainder=False), dealt=True)
    data = data.apply(
        tf.data.experimental.service.distribute(tf.data.experimental.service.ShardingPolicy.DYNAMIC, service)
    )
    # Each worker ends with a batch that is not full; these are joined, so that a pass has as many batches as without them.
    data = data.rebatch(config.batch_size, drop_remainder=config.drop_remainder)
    return data.prefetch(tf.data.AUTOTUNE)
