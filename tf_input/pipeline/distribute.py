"""Reads batches with a tf.data service, and assigns whole shards to hosts."""

from __future__ import annotations

import dataclasses
import logging
import socket
import urllib.parse
from typing import Callable, NamedTuple, Sequence

from tf_input.epochs.order import epoch_key
from tf_input.epochs.share import local_batch_size
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig

_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_ANSWER_SECONDS = 5

_logger = logging.getLogger("tf_input")


class Part(NamedTuple):
    """The shards that a host reads from a split.

    Attributes:
        shards: The indices of the shards that the host opens.
        count: The number of records that it reads in an epoch, the same on all hosts.
    """

    shards: range
    count: int


def divide_shards(split: str, counts: Sequence[int], hosts: tuple[int, int] | None, kind: str | None = "window") -> Part:
    """Assigns each shard to one host, and returns the shards of this host.

    Args:
        split: The name of the split, for messages.
        counts: The number of records of each shard.
        hosts: The pair (number of hosts, index of this host); None for a single host.
        kind: The order of an epoch; see `Plan`.

    Raises:
        ValueError: There are fewer records than hosts.
    """
    num_hosts, index = hosts or (1, 0)
    shares = [sum(counts[host::num_hosts]) for host in range(num_hosts)]
    return _checked(split, counts, hosts, Part(range(index, len(counts), num_hosts), min(shares)), kind)


def _checked(split: str, counts: Sequence[int], hosts: tuple[int, int] | None, part: Part, kind: str | None) -> Part:
    num_hosts, index = hosts or (1, 0)
    if num_hosts == 1:
        return part
    total = sum(counts)
    if not part.count:
        where = f" in {len(counts)} shards" if len(counts) > 1 else ""  # a split that is cached in memory counts as one shard
        raise ValueError(
            f"hosts={hosts}: {split} has {total} examples{where}, too few for {num_hosts} hosts. Use fewer hosts."
        )
    if len(part.shards) < len(counts):
        description = f"shards of its own, {len(part.shards)} of {len(counts)} here"
    else:
        description = "a part of the order of all records, from all shards"
    omitted = total - num_hosts * part.count
    omission = f"; {omitted} are left out, so that all hosts have the same number of steps" if omitted else ""
    message = "%s on %d hosts: this is host %d. Each host reads %s: %d of %d examples%s"
    # With a fixed order, the same examples are left out in each epoch.
    level = logging.WARNING if omitted and kind is None else logging.INFO
    _logger.log(level, message, split, num_hosts, index, description, part.count, total, omission)
    return part


def service_batches(
    split: str, config: ReadConfig, counts: Sequence[int], read_shards: Callable[[ReadConfig, Sequence[int]], tf.data.Dataset]
) -> tf.data.Dataset:
    """Implements `PreparedDataset.batches` with a `service`. The workers of the service read, decode and augment.

    Each iteration contains every example exactly once, unless a worker dies. Each worker gets one shard at a time, so
    the split should have many more shards than workers. If a worker dies, the iteration waits until a worker runs at
    the same address again. The unread examples in the failed worker's shards are replaced by repeated examples, so that
    the number and size of batches stay the same.

    The order of the examples depends on the seed and on the speed of the workers. All iterations use the same random
    crops and flips, so create a dataset with a new `start_epoch` for each epoch. The dataset has no attribute
    `iterator_state`, and can't resume in the middle of an epoch.

    With several `hosts`, each host reads different shards, so the split should have many shards per host.
    `memory_budget` has no effect, because nothing is cached. `map_example` and `map_batch` run on the workers.
    `map_batch` runs before the last batches of the workers are joined.

    Examples:
        ```python
        train = flowers.batches("train", batch_size=128, image_size=224, service="grpc://dispatcher:5050")
        ```

    Args:
        split: The name of the split.
        config: The options of reading, with a `service`.
        counts: The number of examples of each shard.
        read_shards: A function that returns the batches of some shards. The workers run it, and must find the shards
            under the same path or URL as this process.

    Raises:
        ValueError: As in `batches`; or drop_remainder leaves no batch, or an option is not supported: `start_step`, the
            order "exact" or "key", `on_error="skip"`, or Python code in a function.
    """
    _check_service_config(config)
    part = divide_shards(split, counts, config.hosts, config.order(split))
    config = dataclasses.replace(config, batch_size=local_batch_size(config.batch_size, (config.hosts or (1, 0))[0]), hosts=None)
    num_batches = config.num_batches(split, part.count)
    seed = None if config.seed is None else epoch_key(config.seed, config.start_epoch)
    data = read_shards(dataclasses.replace(config, seed=seed, drop_remainder=False), part.shards)
    _check_graph(data, config.service)
    if not config.has_functions:  # the shapes of the results of user functions may be unknown
        _check_shapes(data)
    _warn_of_silence(config.service)
    data = data.apply(tf.data.experimental.service.distribute(tf.data.experimental.service.ShardingPolicy.DYNAMIC, config.service))
    # Each worker ends with an incomplete batch. These batches are joined, so that an iteration has the usual number of
    # batches. The last batch is limited to the existing examples, so that no host starts a second iteration to fill it.
    num_full, remainder = divmod(part.count, config.batch_size)
    sizes = [config.batch_size] * num_full + [remainder] if remainder and not config.drop_remainder else config.batch_size
    data = data.repeat().rebatch(sizes, drop_remainder=config.drop_remainder).take(num_batches)
    data = data.apply(tf.data.experimental.assert_cardinality(num_batches))
    options = tf.data.Options()
    # The service gives each worker other batches, so even the batches of a single host can't be divided afterwards.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return data.with_options(options).prefetch(tf.data.AUTOTUNE)


def _check_shapes(data: tf.data.Dataset) -> None:
    """Checks that all batches have the same shape, because incomplete batches of several workers are joined."""
    for spec in tf.nest.flatten(data.element_spec):
        if isinstance(spec, tf.TensorSpec) and None in spec.shape[1:]:
            raise ValueError(
                f"service: {spec.dtype.name} {[size for size in spec.shape]} differs in size from batch to batch. Pass "
                "max_length=..., or max_objects=..., to fix the size."
            )


def _check_service_config(config: ReadConfig) -> None:
    cases = [
        ("start_step", config.start_step, 0, "a service always starts at the beginning of an epoch"),
        ("on_error", config.on_error, "raise", "the workers of a service can't skip examples"),
    ]
    for name, value, expected, why in cases:
        if value != expected:
            raise ValueError(f"{name}={value!r} is not available with a service: {why}. Use {name}={expected!r}.")
    if config.shuffle in ("exact", "key"):
        raise ValueError(
            f"shuffle={config.shuffle!r} is not available with a service, whose workers read whole shards. "
            "Use shuffle='window' or shuffle=False."
        )


def _warn_of_silence(service: str) -> None:
    """Warns if the service does not answer. Without this check, TensorFlow would wait for an hour without a message."""
    address = urllib.parse.urlsplit(service if "://" in service else f"grpc://{service}")
    try:
        socket.create_connection((address.hostname, address.port), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError, TypeError) as error:
        _logger.warning("service=%r does not respond (%s); retrying", service, error)


def _check_graph(data: tf.data.Dataset, service: str) -> None:
    """Rejects functions that call Python code, because such functions fail on the workers with an unclear message."""
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(data), external_state_policy=1)
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    if any(node.op in _PYTHON_OPS for node in nodes):
        raise ValueError(
            f"service={service!r}: its workers can't run Python code. In map_example and map_batch, use TensorFlow "
            "operations "
            "instead of tf.numpy_function and tf.py_function."
        )
