"""Prevents `tf.data` and `tf.distribute` from dividing batches that are already divided among hosts."""

from __future__ import annotations

import functools
from typing import Any, Callable

from tf_input.lazy_tensorflow import tf


_DERIVED = (  # methods that return a dataset with the same examples
    *("apply", "batch", "cache", "enumerate", "filter", "ignore_errors", "map", "padded_batch", "prefetch", "rebatch", "repeat"),
    *("shuffle", "skip", "take", "unbatch", "with_options"),
)


def sharding_policy(num_hosts: int) -> tf.data.experimental.AutoShardPolicy:
    """Returns the policy that `experimental_distribute_dataset` uses to divide batches among a strategy's workers.

    With a single host, each worker reads whole batches and keeps its part of every batch. With several hosts,
    TensorFlow must reject the batches, because the batches are already divided among hosts. The policy FILE rejects
    datasets that do not read files. The error message contains the name of the dataset; see `source_name`.
    """
    policies = tf.data.experimental.AutoShardPolicy
    return policies.FILE if num_hosts > 1 else policies.DATA


def source_name(hosts: tuple[int, int]) -> str | None:
    """Returns a dataset name that makes TensorFlow's error message explain that the batches are already divided.

    TensorFlow allows only identifiers as names of datasets.
    """
    return None if hosts[0] == 1 else f"batches_are_divided_already_by_hosts_{hosts[0]}_{hosts[1]}__pass_hosts_1_0_to_batches"


def divided(data: tf.data.Dataset, hosts: tuple[int, int]) -> tf.data.Dataset:
    """Marks a dataset as divided among hosts. Calling `shard` on it or on a derived dataset raises an error."""
    data.__class__ = _divided_type(type(data))
    data.hosts = hosts
    return data


@functools.cache
def _divided_type(plain: type[tf.data.Dataset]) -> type[tf.data.Dataset]:
    class Divided(plain):
        def shard(self, num_shards: Any, index: Any, name: str | None = None) -> tf.data.Dataset:
            """Raises ValueError, because dividing the batches a second time would lose examples."""
            raise ValueError(
                f"shard({num_shards}, {index}): these batches are already divided among hosts={self.hosts}. "
                "Remove `.shard`. batch_size is the number of examples on all hosts together."
            )

    for name in _DERIVED:
        if (method := getattr(plain, name, None)) is not None:
            setattr(Divided, name, _keep_divided(method))
    Divided.__name__, Divided.__doc__ = plain.__name__, plain.__doc__
    return Divided


def _keep_divided(method: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    @functools.wraps(method)
    def derive(self: tf.data.Dataset, *arguments: Any, **options: Any) -> tf.data.Dataset:
        data = method(self, *arguments, **options)
        return data if hasattr(data, "hosts") else divided(data, self.hosts)

    return derive
