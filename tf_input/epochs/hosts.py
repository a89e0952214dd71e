"""Detects the number of hosts that train a model together, and the index of this host."""

import contextlib
import json
import logging
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    import tensorflow as tf

_logger = logging.getLogger("tf_input")


def find_hosts(strategy: "tf.distribute.Strategy | tf.distribute.InputContext | None" = None) -> tuple[int, int]:
    """Returns (number of hosts, index of this host), for the option `hosts` of `batches`.

    A host is a process that reads the batches for all of its devices. By default, `batches` detects hosts
    automatically.

    Examples:
        ```python
        train = flowers.batches("train", batch_size=128, hosts=tf_input.find_hosts(strategy))
        ```

    Args:
        strategy: A `tf.distribute` strategy, or the context that its `distribute_datasets_from_function` passes.
            Default: None, which detects processes from `jax.distributed`, `torch.distributed` or the variable
            TF_CONFIG, in this order. Without any of them, there is one host.

    Returns:
        The number of hosts, and the index of this host, from 0.

    Raises:
        ValueError: The hosts of the strategy can't be detected, or TF_CONFIG is invalid or belongs to a process that
            does not train.
    """
    if strategy is None:
        return _find_processes()[0]
    tf = sys.modules["tensorflow"]
    if isinstance(strategy, tf.distribute.InputContext):
        return strategy.num_input_pipelines, strategy.input_pipeline_id
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        resolver = strategy.cluster_resolver
        return _find_task(resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id)
    is_default = strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy()
    if is_default or isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)):
        return 1, 0
    raise ValueError(
        f"strategy={strategy!r} does not say which host this is. Pass the InputContext that "
        "distribute_datasets_from_function gives to its function."
    )


def _active_strategy() -> "tf.distribute.Strategy | None":
    """Returns the strategy whose scope is active, or None. If TensorFlow is not imported, none is active."""
    tf = sys.modules.get("tensorflow")
    return tf.distribute.get_strategy() if tf is not None and tf.distribute.has_strategy() else None


def hosts_of(split: str) -> tuple[int, int]:
    """Detects the number of hosts and the index of this host. Logs a message if there are several hosts.

    Args:
        split: The name of the split, for messages.

    Raises:
        ValueError: The hosts can't be detected.
    """
    if (strategy := _active_strategy()) is not None:
        try:
            hosts, where = find_hosts(strategy), f"the {type(strategy).__name__} whose scope is active"
        except ValueError as error:
            raise ValueError(
                f"hosts=None: {error} Pass hosts=tf_input.find_hosts(context), or hosts=(1, 0) to read all data here."
            ) from error
    else:
        hosts, where = _find_processes(is_asked=False)
    if hosts[0] > 1:
        # Wrongly detected hosts would change the batches and the accuracy without an error.
        message = "%s: found %d hosts from %s; this is host %d and reads only its part. To read all, pass hosts=(1, 0)."
        _logger.warning(message, split, hosts[0], where, hosts[1])
    return hosts


def warn_undivided(name: str) -> None:
    """Logs a warning if there are several hosts but the records of a source are not divided among the hosts.

    Args:
        name: The name of the source, for the message.
    """
    if _active_strategy() is not None:  # the strategy divides the records
        return
    with contextlib.suppress(ValueError):  # TF_CONFIG is not required here, so errors in it are ignored
        hosts, where = _find_processes(is_asked=False)
        if hosts[0] > 1:
            message = "%s: found %d hosts from %s. Each host reads all data, unless a tf.distribute strategy shards it. "
            message += "To divide the data, give each host its own files, or call `.shard(%d, index)`."
            _logger.warning(message, name, hosts[0], where, hosts[0])


def _find_processes(is_asked: bool = True) -> tuple[tuple[int, int], str]:
    """Returns the number of hosts, this host's index, and the name of the library or variable that defines them.

    Args:
        is_asked: Whether to raise an error in a process that does not train.
    """
    if (hosts := _find_jax_process()) is not None:
        return hosts, "jax.distributed"
    if (hosts := _find_torch_process()) is not None:
        return hosts, "torch.distributed"
    if (hosts := _find_tf_config(is_asked)) is not None:
        return hosts, "TF_CONFIG"
    return (1, 0), "nothing"


def _find_jax_process() -> tuple[int, int] | None:
    # JAX may be imported only because Keras imports it. `jax.process_count()` would initialize JAX and take GPU memory.
    jax = sys.modules.get("jax")
    if jax is None or not _is_jax_distributed(jax):
        return None
    return jax.process_count(), jax.process_index()


def _is_jax_distributed(jax: ModuleType) -> bool:
    if (is_initialized := getattr(jax.distributed, "is_initialized", None)) is not None:
        return is_initialized()
    # JAX up to 0.4.30 does not have this function.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None


def _find_torch_process() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_world_size(), distributed.get_rank()


def _find_tf_config(is_asked: bool) -> tuple[int, int] | None:
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        task, cluster = config.get("task") or {}, config.get("cluster") or {}
        if not is_asked and task.get("type") == "evaluator":
            return 1, 0  # an evaluator evaluates alone
        if not is_asked and cluster.get("ps"):
            raise ValueError("hosts can't be detected with parameter servers. Pass hosts=(number of hosts, index).")
        return _find_task(cluster, task.get("type"), task.get("index"))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"TF_CONFIG={text}: {error}") from error


def _find_task(cluster: dict[str, Sequence[str]], kind: str | None, index: int | str | None) -> tuple[int, int]:
    """Returns the number of processes in a cluster and the index of a task. The chief comes before the workers."""
    if not cluster:
        return 1, 0
    jobs = [(job, index) for job in ("chief", "worker") for index in range(len(cluster.get(job, ())))]
    if (task := (kind, int(index or 0))) not in jobs:
        raise ValueError(f"task {task} is not in the cluster; its chief and workers are {jobs}.")
    return len(jobs), jobs.index(task)
