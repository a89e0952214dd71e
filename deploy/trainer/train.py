"""Trains an image classifier of keras.applications on a data set that `recordmill prepare` wrote, and evaluates it.

The modules:

    options       the command line
    models        the networks, uint8 images in; the optimizers
    inputs        what each worker reads
    cluster       the strategy: on which devices and machines
    loop          training and evaluation steps on any strategy
    checkpoints   where a training stands
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import signal
import sys
import time
from typing import Any, NoReturn

import options

_OF_THE_DATA = ("name", "examples")  # of what a run shares with the one that it goes on with

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 the training failed, 2 wrong usage or input, 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        settings = options.parse(argv)
        if settings.workers:
            os.environ["TF_CONFIG"] = options.tf_config(settings.workers, settings.worker_index)
        training = Training(settings)
    except (ValueError, OSError, ImportError) as error:
        print(f"train: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    try:
        training.run()
    except ArithmeticError as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train: interrupted; --resume goes on after the last checkpoint", file=sys.stderr)
        return 130
    return 0


class Training:
    """One run. All that the user can have got wrong is found out before the first step.

    Raises:
        ValueError, OSError, ImportError: Options, data set, packages or cluster are not fit to train.
    """

    def __init__(self, settings: options.Options) -> None:
        import checkpoints
        import cluster
        import inputs
        import keras
        import loop
        import models
        import tf_input
        from tf_input import dataset_format

        self.settings = settings
        self.folder = pathlib.Path(settings.output)
        self.strategy = cluster.make_strategy(settings.strategy)
        keras.utils.set_random_seed(settings.seed % 2**32)
        if settings.mixed_precision != "none":
            keras.mixed_precision.set_global_policy(f"mixed_{settings.mixed_precision}")
        self.dataset = tf_input.open(settings.data, cache_directory=settings.cache_directory, cache_bytes=settings.cache_bytes)
        if settings.train_split is None:
            found = dataset_format.training_split(self.dataset.splits)
            self.settings = settings = dataclasses.replace(settings, train_split=found)
        self.is_chief = cluster.is_chief(self.strategy)
        self.image_size = settings.image_size or models.NETWORKS[settings.model].image_size
        num_replicas = self.strategy.num_replicas_in_sync
        if settings.batch_size % num_replicas:
            raise ValueError(f"--batch_size={settings.batch_size}: expected a multiple of the {num_replicas} replicas")
        if settings.jit_compile and num_replicas > 1:
            raise ValueError(f"--jit_compile: XLA compiles the step of one replica; there are {num_replicas}")
        per_replica = settings.batch_size // num_replicas

        self._checkpoints = checkpoints
        self.position = self._find_position()
        augmentation = tf_input.Augmentation(min_area=settings.min_area, flip=settings.flip)
        self.train_batches = inputs.training_batches(
            self.dataset,
            settings.train_split,
            self.strategy,
            per_replica,
            class_weight=self.dataset.class_weight(settings.train_split) if settings.class_weight else None,
            service=settings.data_service,
            limit_steps=settings.limit_steps,
            image_size=self.image_size,
            augment=settings.augment and augmentation,
            seed=settings.seed,
        )
        self.eval_batches = None
        if settings.eval_split != "none":
            self.eval_batches = inputs.evaluation_batches(
                self.dataset, settings.eval_split, self.strategy, per_replica, self.image_size, settings.limit_steps
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
        first_step = self.position.step if self.position else 0
        if cluster.mean_over_workers(self.strategy, first_step) != first_step:
            raise ValueError(f"--output={self.folder}: workers find different checkpoints in it; expected a shared directory")
        self._go_on()

    def run(self) -> None:
        """Trains the epochs that are left, evaluates after each, and writes the model and results.json."""
        import tensorflow as tf

        writer = tf.summary.create_file_writer(str(self.folder / "logs")) if self.is_chief else None
        first_epoch = self.position.epoch if self.position else 0
        history = list(self.position.history) if self.position else []
        for epoch in range(first_epoch, self.settings.epochs):
            results = self._train_epoch(epoch, history)
            if self.eval_batches is not None:
                evaluation = self.loop.evaluate(self.eval_batches.iterator(epoch), self.eval_batches.num_steps)
                results |= {f"eval_{name}": value for name, value in evaluation.items()}
            history.append(results)
            if self.is_chief:
                self._report(writer, results)
                self._save(epoch + 1, 0, history)
        if self.is_chief:
            self.model.save(self.folder / "model.keras")
            self._write_results(history)

    def _train_epoch(self, epoch: int, history: list[dict[str, Any]]) -> dict[str, Any]:
        started, timed_from, steps = time.perf_counter(), None, self.train_batches.num_steps
        first = saved = self.position.step - epoch * steps if self.position and self.position.epoch == epoch else 0
        for done in self.loop.train(self.train_batches.iterator(epoch, first), steps, first):
            if self.is_chief and self.settings.save_steps and saved + self.settings.save_steps <= done < steps:
                self._save(epoch, saved := done, history)
            if timed_from is None:  # tracing, compiling and the pipeline's start are no part of the speed
                self.loop.results()  # waits for the step
                timed_from, warm = time.perf_counter(), done
        results = self.loop.results()
        if not all(map(math.isfinite, results.values())):
            raise ArithmeticError(f"epoch {epoch + 1}: loss {results['loss']}; try a smaller --learning_rate")
        ended = time.perf_counter()
        images = (steps - warm) * self.settings.batch_size
        speed = {"images_per_second": round(images / (ended - timed_from), 1)} if images else {}
        return {"epoch": epoch + 1, "steps": steps - first, "seconds": round(ended - started, 3), **results, **speed}

    def _save(self, epoch: int, step: int, history: list[dict[str, Any]]) -> None:
        """A checkpoint: so many epochs are done, and so many steps of the next one."""
        done = epoch * self.train_batches.num_steps + step
        position = self._checkpoints.Position(epoch, done, self._identity(), history)
        self._checkpoints.save(self.folder / "checkpoints", self.model, position)

    def _report(self, writer: Any, results: dict[str, Any]) -> None:
        import tensorflow as tf

        # Not tf.summary.scalar, for which TensorBoard would have to be installed where the training runs.
        scalars = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})
        with writer.as_default(step=results["epoch"]):
            for name, value in {**results, "learning_rate": float(self.model.optimizer.learning_rate)}.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=scalars)
        writer.flush()
        shown = [f"{name} {value:,.4g}" for name, value in results.items() if name not in ("epoch", "steps")]
        print(f"epoch {results['epoch']}/{self.settings.epochs}: {', '.join(shown)}", flush=True)

    def _find_position(self) -> Any:
        position = self._checkpoints.latest(self.folder / "checkpoints")
        if position is None:
            return None
        if not self.settings.resume:
            raise ValueError(f"{self.folder} has a checkpoint of step {position.step}: give --resume, or another --output")
        return position

    def _go_on(self) -> None:
        """From the checkpoint, if there is one, and it is of a run like this."""
        if self.position is None:
            return
        here, there = self._identity(), self.position.settings
        if there.get("manifest") != here["manifest"]:
            changes = [f"{name} was {there.get(name)!r} and is {here[name]!r}" for name in _OF_THE_DATA if there.get(name) != here[name]]
            what = "; ".join(changes) or "as many examples, but others or in another order"
            raise ValueError(f"--resume: the data set has changed since the checkpoint was made: {what}; expected it as it was")
        for name, value in here.items():
            if (found := self.position.settings.get(name)) != value:
                raise ValueError(f"--resume: the checkpoint was made with {name} {found!r}; expected {value!r}")
        self._checkpoints.restore(self.folder / "checkpoints", self.model, self.position)
        batch = self.position.step - self.position.epoch * self.train_batches.num_steps
        print(f"resumed at epoch {self.position.epoch + 1}, batch {batch + 1}", flush=True)

    def _identity(self) -> dict[str, Any]:
        names = ("model", "batch_size", "optimizer", "mixed_precision", "train_split", "seed")
        manifest = hashlib.sha256(self.dataset.manifest.to_json().encode()).hexdigest()
        own = {"name": self.dataset.manifest.name, "examples": self.dataset.num_examples(self.settings.train_split)}
        own |= {"image_size": self.image_size, "steps_per_epoch": self.train_batches.num_steps, "manifest": manifest}
        return {**{name: getattr(self.settings, name) for name in names}, **own}

    def _write_results(self, history: list[dict[str, Any]]) -> None:
        import keras
        import tensorflow as tf

        results = {
            "settings": dataclasses.asdict(self.settings),
            "manifest": self._identity()["manifest"],
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
