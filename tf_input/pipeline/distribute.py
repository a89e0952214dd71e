"""Reading on many machines: each host its own part, or a tf.data service that reads for them; which hosts there are, see `hosts`."""

import dataclasses
import logging
import socket
import urllib.parse
from typing import Callable, NamedTuple, Sequence

import tensorflow as tf

from tf_input.epochs.order import epoch_key
from tf_input.epochs.share import local_batch_size
from tf_input.read_config import ReadConfig

_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_ANSWER_SECONDS = 5

_logger = logging.getLogger("tf_input")


class Part(NamedTuple):
    """What one host reads of a split.

    Attributes:
        shards: The places of the shards that the host opens.
        count: The number of records that it reads in an epoch; the same on all hosts.
    """

    shards: range
    count: int


def divide_shards(split: str, counts: Sequence[int], hosts: tuple[int, int] | None, kind: str | None = "window") -> Part:
    """One host's part where only whole shards can be dealt out: disjoint from the others', and as large.

    Args:
        split: The name of the split, for messages.
        counts: The number of records of each shard.
        hosts: The (number of hosts, this one's index); None: one.
        kind: The order; see `Plan`.

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
        where = f" in {len(counts)} shards" if len(counts) > 1 else ""  # one: in memory
        raise ValueError(f"hosts={hosts}: {split} has {total} examples{where}, too few for {num_hosts} hosts")
    if len(part.shards) < len(counts):
        what = f"shards of its own, {len(part.shards)} of {len(counts)} here"
    else:
        what = "a part of the order of all records, from all shards"
    left_out = total - num_hosts * part.count
    rest = f"; {left_out} are left out, so that all make as many steps" if left_out else ""
    message = "%s on %d hosts, of which this is number %d: each reads %s, %d of %d examples%s"
    # Of a fixed order they are the same ones each time, which nobody evaluates.
    level = logging.WARNING if left_out and kind is None else logging.INFO
    _logger.log(level, message, split, num_hosts, index, what, part.count, total, rest)
    return part


def service_batches(
    split: str, config: ReadConfig, counts: Sequence[int], read_shards: Callable[[ReadConfig, Sequence[int]], tf.data.Dataset]
) -> tf.data.Dataset:
    """`dataset.batches` with a `service`: read, decoded and augmented by the workers of a tf.data service.

        train = flowers.batches("train", batch_size=128, image_size=224, service="grpc://dispatcher:5050")

    Each pass has every example exactly once, as long as no worker of the service dies: shards are handed to workers one by one;
    there should be many to a worker. A pass waits for a worker that died until it is back at its address. What it had of its
    shards and not delivered is left out, and as many examples of a second pass take its place, which may have come before: a
    pass has all its batches, of the same sizes, as a training would count a step for one that is missing. The order depends on
    which worker is quicker, not on the seed alone; and every pass draws the same crops and flips, so make a data set with
    another `start_epoch` for each epoch. It has no `position`: such an epoch can't be gone on with in its middle.

    Of `hosts`, each has shards of its own, so there should be many to a host too. `memory_budget` does not apply: nothing is
    held. `map_example` and `map_batch` run on the workers, `map_batch` before workers' last batches are joined.

    Args:
        split: The name of the split, one of the data set's.
        config: The options, with a `service`.
        counts: The number of examples of each of its shards.
        read_shards: A function that makes batches of some of them, as the workers are to do, which read them under the same path or URL as
            this process.

    Raises:
        ValueError: As in `batches`; or drop_remainder leaves nothing, or an option can't work there: `start_step`, the order
            "exact", `on_error="skip"`, Python code in a function.
    """
    _check_service_config(config)
    part = divide_shards(split, counts, config.hosts, config.order(split))
    config = dataclasses.replace(config, batch_size=local_batch_size(config.batch_size, (config.hosts or (1, 0))[0]), hosts=None)
    num_batches = config.num_batches(split, part.count)
    seed = None if config.seed is None else epoch_key(config.seed, config.start_epoch)
    data = read_shards(dataclasses.replace(config, seed=seed, drop_remainder=False), part.shards)
    _check_graph(data, config.service)
    if not config.has_functions:  # whose shapes may be known to their user alone
        _check_shapes(data)
    _warn_of_silence(config.service)
    data = data.apply(tf.data.experimental.service.distribute(tf.data.experimental.service.ShardingPolicy.DYNAMIC, config.service))
    # Each worker ends with a batch that is not full; these are joined, so that a pass has as many batches as without them. Of a last
    # batch no more is asked for than all hosts have, so none begins a second pass to fill it.
    num_full, remainder = divmod(part.count, config.batch_size)
    sizes = [config.batch_size] * num_full + [remainder] if remainder and not config.drop_remainder else config.batch_size
    data = data.repeat().rebatch(sizes, drop_remainder=config.drop_remainder).take(num_batches)
    data = data.apply(tf.data.experimental.assert_cardinality(num_batches))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return data.with_options(options).prefetch(tf.data.AUTOTUNE)


def _check_shapes(data: tf.data.Dataset) -> None:
    """Batches that workers end with are joined, which takes one shape for all."""
    for spec in tf.nest.flatten(data.element_spec):
        if isinstance(spec, tf.TensorSpec) and None in spec.shape[1:]:
            raise ValueError(
                f"service: {spec.dtype.name} {[size for size in spec.shape]} differs from batch to batch; expected max_length=..., or max_objects=..., that "
                "say how many there may be"
            )


def _check_service_config(config: ReadConfig) -> None:
    cases = [
        ("start_step", config.start_step, 0, "a service gives an epoch from its beginning"),
        ("on_error", config.on_error, "raise", "a service's workers skip nothing"),
    ]
    for name, value, expected, why in cases:
        if value != expected:
            raise ValueError(f"{name}={value!r}: expected {expected!r} with a service: {why}")
    if config.shuffle in ("exact", "key"):
        raise ValueError(f"shuffle={config.shuffle!r}: expected 'window' or False with a service: its workers read whole shards")


def _warn_of_silence(service: str) -> None:
    """TensorFlow waits for an hour for who does not answer, and says nothing: it may be the address that is wrong."""
    address = urllib.parse.urlsplit(service if "://" in service else f"grpc://{service}")
    try:
        socket.create_connection((address.hostname, address.port), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError, TypeError) as error:
        _logger.warning("service=%r: nobody answers there (%s); waiting", service, error)


def _check_graph(data: tf.data.Dataset, service: str) -> None:
    """Where Python code would fail on the workers, with a message that names nothing that the user wrote."""
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(data), external_state_policy=1)
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    if any(node.op in _PYTHON_OPS for node in nodes):
        raise ValueError(
            f"service={service!r}: its workers run no Python code; expected TensorFlow operations in map_example and map_batch, "
            "no tf.numpy_function or tf.py_function"
        )
