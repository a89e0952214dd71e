"""Trains an image classifier of keras.applications on a dataset from `recordmill prepare`, and evaluates it.

The trainer also has these modules:

    options       parses the command line
    models        creates networks and optimizers
    inputs        creates the batches of each worker
    cluster       selects devices and machines
    loop          runs training and evaluation steps with any strategy

`tf_input.Checkpoint` saves checkpoints.
"""

import dataclasses
import json
import math
import os
import pathlib
import signal
import sys
import time
from typing import Any, NoReturn

import options

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code.

    The exit code is 0 for success, 1 for a failure that a retry may fix, 2 for wrong usage or input, and 130 for an
    interruption.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        settings = options.parse(argv)
        if settings.workers:
            os.environ["TF_CONFIG"] = options.tf_config(settings.workers, settings.worker_index)
        training = Training(settings)
    except (ValueError, OSError, ImportError) as error:
        print(f"train: {' '.join(str(error).split())}", file=sys.stderr)
        is_wrong = not isinstance(error, OSError) or isinstance(error, (FileNotFoundError, NotADirectoryError))
        return 2 if is_wrong else 1  # A store or disk may work again at the next try.
    except KeyboardInterrupt:
        return 130
    try:
        training.run()
    except ArithmeticError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train: interrupted. Rerun with --resume to continue from the last checkpoint.", file=sys.stderr)
        return 130
    return 0


class Training:
    """One run of the trainer. Errors in options and input are detected before the first training step.

    Raises:
        ValueError, OSError, ImportError: The options, the dataset, the packages or the cluster are not suitable.
    """

    def __init__(self, settings: options.Options) -> None:
        import keras

        import cluster
        import inputs
        import loop
        import models
        import tf_input
        from tf_input import dataset_format
        from tf_input.training import checkpoint

        self.settings = settings
        self.folder = pathlib.Path(settings.output)
        self.strategy = cluster.make_strategy(settings.strategy)
        keras.utils.set_random_seed(settings.seed % 2**32)
        if settings.mixed_precision != "none":
            keras.mixed_precision.set_global_policy(f"mixed_{settings.mixed_precision}")
        self.dataset = tf_input.open(settings.data, cache_directory=settings.cache_directory, cache_bytes=settings.cache_bytes)
        if settings.train_split is None:
            train_split = dataset_format.training_split(self.dataset.splits)
            self.settings = settings = dataclasses.replace(settings, train_split=train_split)
        self.is_chief = cluster.is_chief(self.strategy)
        self.image_size = settings.image_size or models.NETWORKS[settings.model].image_size
        num_replicas = self.strategy.num_replicas_in_sync
        if settings.batch_size % num_replicas:
            raise ValueError(
                f"--batch_size={settings.batch_size} is not a multiple of the {num_replicas} replicas. Choose a "
                "multiple."
            )
        if settings.jit_compile and num_replicas > 1:
            raise ValueError(
                f"--jit_compile supports only one replica, but there are {num_replicas}. Remove it, or use one device."
            )
        checkpoints = checkpoint.find_checkpoints(self.folder / "checkpoints")
        if checkpoints and not settings.resume:
            raise ValueError(f"{checkpoints[-1]} exists. Pass --resume to continue from it, or another --output.")

        augmentation = tf_input.Augmentation(min_area=settings.min_area, flip=settings.flip)
        self.train_batches = inputs.training_batches(
            self.dataset,
            settings.train_split,
            self.strategy,
            settings.batch_size,
            class_weight="balanced" if settings.class_weight else None,
            limit_steps=settings.limit_steps,
            image_size=self.image_size,
            augment=settings.augment and augmentation,
            seed=settings.seed,
        )
        self.eval_batches = None
        if settings.eval_split != "none":
            self.eval_batches = inputs.evaluation_batches(
                self.dataset, settings.eval_split, self.strategy, settings.batch_size, self.image_size, settings.limit_steps
            )
        with self.strategy.scope():
            self.model = models.make_model(
                settings.model,
                self.image_size,
                len(self.dataset.class_names),
                None if settings.weights == "none" else settings.weights,
                settings.dropout,
            )
            self.model.compile(
                models.make_optimizer(settings, self.train_batches.num_steps),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                jit_compile=False,
            )
            self.model.optimizer.build(self.model.trainable_variables)
            self.loop = loop.Loop(
                self.model,
                self.model.optimizer,
                self.strategy,
                jit_compile=settings.jit_compile,
                steps_per_execution=settings.steps_per_execution,
            )
        # A resumed run must have the same values of these options, and the same batches.
        names = ("model", "optimizer", "mixed_precision", "class_weight")
        self.checkpoint = tf_input.Checkpoint(
            self.folder / "checkpoints",
            self.model,
            self.train_batches,
            settings={**{name: getattr(settings, name) for name in names}, "steps_per_epoch": self.train_batches.num_steps},
            save_freq=settings.save_steps or "epoch",
            writes=self.is_chief,
        )
        num_done_steps = self.checkpoint.epoch * self.train_batches.num_steps + self.checkpoint.step
        if cluster.mean_over_workers(self.strategy, num_done_steps) != num_done_steps:
            raise ValueError(
                f"--output={self.folder}: the workers find different checkpoints. Give a directory that all workers "
                "share."
            )

    def run(self) -> None:
        """Trains the remaining epochs, evaluates after each epoch, and writes the model and results.json."""
        import tensorflow as tf

        writer = tf.summary.create_file_writer(str(self.folder / "logs")) if self.is_chief else None
        history = self.checkpoint.state.setdefault("history", [])
        for epoch in self.checkpoint.epochs(self.settings.epochs):
            results = self._train_epoch(epoch)
            if self.eval_batches is not None:
                evaluation = self.loop.evaluate(self.eval_batches.iterator(epoch), self.eval_batches.num_steps)
                results |= {f"eval_{name}": value for name, value in evaluation.items()}
            history.append(results)
            if self.is_chief:
                self._report(writer, results)
        if self.is_chief:
            self.model.save(self.folder / "model.keras")
            self._write_results(history)

    def _train_epoch(self, epoch: int) -> dict[str, Any]:
        started, timed_from, steps, first = time.perf_counter(), None, self.train_batches.num_steps, self.checkpoint.step
        for done in self.loop.train(self.train_batches.iterator(epoch, first), steps, first):
            self.checkpoint.advance(done - self.checkpoint.step)
            if timed_from is None:  # The speed excludes tracing, compilation and the start of the input pipeline.
                self.loop.results()  # Waits for the end of the step.
                timed_from, warm = time.perf_counter(), done
        results = self.loop.results()
        if not all(map(math.isfinite, results.values())):
            raise ArithmeticError(f"epoch {epoch + 1}: the loss is {results['loss']}. Try a smaller --learning_rate.")
        ended = time.perf_counter()
        images = (steps - warm) * self.settings.batch_size
        speed = {"images_per_second": round(images / (ended - timed_from), 1)} if images else {}
        return {"epoch": epoch + 1, "steps": steps - first, "seconds": round(ended - started, 3), **results, **speed}

    def _report(self, writer: Any, results: dict[str, Any]) -> None:
        import tensorflow as tf

        # `tf.summary.scalar` would require an installation of TensorBoard.
        scalars = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
        with writer.as_default(step=results["epoch"]):
            for name, value in {**results, "learning_rate": float(self.model.optimizer.learning_rate)}.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=scalars)
        writer.flush()
        shown = [f"{name} {value:,.4g}" for name, value in results.items() if name not in ("epoch", "steps")]
        print(f"epoch {results['epoch']}/{self.settings.epochs}: {', '.join(shown)}", flush=True)

    def _write_results(self, history: list[dict[str, Any]]) -> None:
        import keras
        import tensorflow as tf

        results = {
            "settings": dataclasses.asdict(self.settings),
            "manifest": self.train_batches.iterator_state.fingerprint["manifest"],
            "label_names": self.dataset.class_names,
            "replicas": self.strategy.num_replicas_in_sync,
            "devices": [device.name for device in tf.config.list_logical_devices()],
            "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
            "step": int(self.model.optimizer.iterations.numpy()),
            "history": history,
        }
        path = self.folder / "results.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"{self.folder / 'model.keras'}, {path}")


def _interrupt(*unused: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
