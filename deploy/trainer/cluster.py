"""Selects the devices and machines on which the model is trained."""

import os

import tensorflow as tf

import options


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Returns the strategy for `--strategy`. With `multi_worker`, this function waits until all workers have started.

    Raises:
        ValueError: TF_CONFIG is missing or invalid.
    """
    if name == "none":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    options.check_tf_config(os.environ.get("TF_CONFIG"))
    return tf.distribute.MultiWorkerMirroredStrategy()


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes the shared output."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return resolver.task_type == "chief" or (not has_chief and resolver.task_id == 0)


def mean_over_workers(strategy: tf.distribute.Strategy, value: int) -> float:
    """Returns the mean of a number over all workers. Every worker must call this function."""

    @tf.function
    def mean() -> tf.Tensor:
        return strategy.reduce("MEAN", strategy.run(tf.constant, args=(float(value),)), axis=None)

    return float(mean())
