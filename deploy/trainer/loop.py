"""Runs training and evaluation steps on one device, on all devices of a machine, or on several machines.

`Model.fit` of Keras 3 fails under `MultiWorkerMirroredStrategy`. Keras' `fit` also fails under `MirroredStrategy` with
several steps per execution. The loop in this module follows the `tf.distribute` guide, and works with every strategy.
"""

from typing import Any, Iterator

import keras
import tensorflow as tf


class Loop:
    """Runs the training and evaluation steps of a model. Create the object in the scope of the strategy.

    Args:
        model: A model that maps images to logits.
        optimizer: The optimizer, built for the model's trainable variables.
        strategy: The strategy in whose scope model and optimizer were created.
        jit_compile: Whether XLA compiles the training step. It requires a single replica.
        steps_per_execution: The number of training steps per call from Python.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        strategy: tf.distribute.Strategy,
        *,
        jit_compile: bool = False,
        steps_per_execution: int = 1,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.strategy = strategy
        self._steps_per_execution = steps_per_execution
        self._metrics = [keras.metrics.Mean("loss"), keras.metrics.SparseCategoricalAccuracy("accuracy")]
        if model.output_shape[-1] > 5:
            self._metrics.append(keras.metrics.SparseTopKCategoricalAccuracy(5, "top5_accuracy"))
        self._num_examples = keras.metrics.Sum("examples")
        step = tf.function(self._train_step, jit_compile=True) if jit_compile else self._train_step

        @tf.function(reduce_retracing=True)
        def train(iterator: Iterator, num_steps: tf.Tensor) -> None:
            for _ in tf.range(num_steps):
                strategy.run(step, args=next(iterator))

        @tf.function(reduce_retracing=True)
        def evaluate(iterator: Iterator, num_steps: tf.Tensor) -> None:
            for _ in tf.range(num_steps):
                strategy.run(self._evaluation_step, args=next(iterator))

        self._train, self._evaluate = train, evaluate

    def train(self, iterator: Iterator, num_steps: int, done: int = 0) -> Iterator[int]:
        """Runs the remaining steps of an epoch in groups, and yields the number of completed steps after each group."""
        self._reset()
        while done < num_steps:
            count = min(self._steps_per_execution, num_steps - done)
            self._train(iterator, tf.constant(count))
            done += count
            yield done

    def evaluate(self, iterator: Iterator, num_steps: int) -> dict[str, float]:
        """Returns the metrics over all examples and the number of examples."""
        self._reset()
        self._evaluate(iterator, tf.constant(num_steps))
        return {**self.results(), "examples": int(self._num_examples.result())}

    def results(self) -> dict[str, float]:
        """Returns the training metrics since the epoch started or was resumed. All workers must call this method."""
        return {metric.name: float(metric.result()) for metric in self._metrics}

    def _train_step(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_mean(losses * weights) + tf.add_n([0.0, *self.model.losses])
            # The loss is divided, because the optimizer adds the gradients of all replicas.
            scaled = self.optimizer.scale_loss(loss / self.strategy.num_replicas_in_sync)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        self._update(labels, logits, losses, weights, None)

    def _evaluation_step(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> None:
        logits = self.model(images, training=False)
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        self._num_examples.update_state(weights)
        self._update(labels, logits, losses, weights, weights)

    def _update(self, labels: Any, logits: Any, losses: Any, loss_weights: Any, weights: Any) -> None:
        """Updates the metrics. Class weights affect the training loss, but not the accuracy."""
        if weights is None:
            self._metrics[0].update_state(losses * loss_weights)
        else:
            self._metrics[0].update_state(losses, sample_weight=weights)
        for metric in self._metrics[1:]:
            metric.update_state(labels, logits, sample_weight=weights)

    def _reset(self) -> None:
        for metric in (*self._metrics, self._num_examples):
            metric.reset_state()
