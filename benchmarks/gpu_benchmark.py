"""Measures how long a GPU waits for its input when Keras trains on a prepared dataset.

On the CPU, tf.data reads, decodes and randomly crops the images. The rest of the preprocessing has two variants:

    uint8      `augmentation_layer` and `normalization_layer` are the first layers of the model, on the GPU
    float32    flips, colors and normalization are part of the dataset, on the CPU; batches are four times larger

With the TensorFlow backend, `fit` copies each batch to the GPU at the start of its step. The benchmark therefore also
measures `tf.data.experimental.prefetch_to_device`, which copies batches in advance. With JAX, Keras automatically
copies batches in advance.

The benchmark computes the fraction of time in which the GPU is idle in two ways:

    1 - (time of a step with a batch that is already on the device) / (time of a step with input)
    1 - (GPU utilization from nvidia-smi)

The benchmark also prints the speed of reading without training. The idle fraction is omitted if the machine has no GPU.

Usage: python -m benchmarks.gpu_benchmark DATASET [--backend jax] [--model resnet50] [--batch_size 256]
    [--steps 50]
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from typing import Any, Iterator, NamedTuple, Sequence

COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
_SAMPLE_MILLISECONDS = 100
_EPOCHS = 3  # The model is compiled in the first epoch. All other epochs are measured.
FORMAT = "{:<34} {:>12} {:>12} {:>16} {:>16}"


class TrainingSpeed(NamedTuple):
    """The measurements of a training run.

    Attributes:
        seconds: The time per step.
        busy: The mean GPU utilization from nvidia-smi, 0 to 1. None if the machine has no GPU.
    """

    seconds: float
    busy: float | None


class Utilisation:
    """Measures the utilization of the first visible GPU at short intervals."""

    def __init__(self) -> None:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        query = ["nvidia-smi", f"--id={device}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        query += ["-lms", str(_SAMPLE_MILLISECONDS)]
        self._samples: list[tuple[float, float]] = []  # (time, utilization)
        self._process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True) if shutil.which(query[0]) else None
        if self._process is not None:
            threading.Thread(target=self._collect, args=(self._process,), daemon=True).start()

    def _collect(self, process: subprocess.Popen) -> None:
        for line in process.stdout:
            if line.strip().isdigit():
                self._samples.append((time.perf_counter(), int(line) / 100))

    def stop(self, start: float, end: float) -> float | None:
        """Returns the mean GPU utilization between two times, or None if there is no measurement in this interval."""
        if self._process is None:
            return None
        self._process.terminate()
        self._process.wait()
        actual = [share for when, share in self._samples if start <= when <= end]
        return statistics.mean(actual) if actual else None


def has_gpu(backend: str) -> bool:
    """Returns whether Keras's backend has a GPU."""
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def make_model(options: argparse.Namespace, num_classes: int, first: Sequence[Any]) -> Any:
    """Returns a compiled image classifier that begins with the layers `first`. The input shape is [size, size, 3]."""
    import keras

    shape = (options.image_size, options.image_size, 3)
    if options.model == "resnet50":
        body = keras.applications.ResNet50(weights=None, include_top=False, pooling="avg", input_shape=shape)
    else:
        convolution = keras.layers.Conv2D(8, 3, strides=4, activation="relu")
        body = keras.Sequential([keras.Input(shape), convolution, keras.layers.GlobalAveragePooling2D()])
    top = keras.layers.Dense(num_classes, dtype="float32")
    images = keras.Input(shape, dtype="uint8" if first else "float32")
    outputs = images
    for layer in (*first, body, top):
        outputs = layer(outputs)
    model = keras.Model(images, outputs)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def make_variants(data: Any, options: argparse.Namespace) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yields (name, tf.data.Dataset, first layers of the model) for each variant."""
    import tensorflow as tf

    import tf_input

    read = {"batch_size": options.batch_size, "image_size": options.image_size, "drop_remainder": True, "seed": 0}
    first = [tf_input.augmentation_layer(tf_input.Augmentation(**COLOURS), seed=0), data.normalization_layer()]
    batches = data.batches(options.split, **read, augment=tf_input.Augmentation(flip=False))
    yield "uint8, augmented by the model", batches, first
    pixels = data.statistics["splits"][options.split]["pixels"]
    mean, deviation = tf.constant(pixels["mean"], tf.float32), tf.sqrt(tf.constant(pixels["variance"], tf.float32))

    def to_floats(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (tf.cast(images, tf.float32) - mean) / deviation, labels

    batches = data.batches(options.split, **read, augment=tf_input.Augmentation(**COLOURS), map_batch=to_floats)
    yield "float32, augmented on the CPU", batches, []


def read_alone(batches: Any, steps: int) -> float:
    """Returns the time per batch in seconds for reading without training."""
    iterator = iter(batches.repeat())
    for _ in range(steps):  # Warm-up.
        next(iterator)
    start = time.perf_counter()
    for _ in range(steps):
        next(iterator)
    return (time.perf_counter() - start) / steps


def train(model: Any, batches: Any, steps: int) -> TrainingSpeed:
    """Trains several epochs of `steps` steps. The time between epochs is not measured."""
    import keras

    class Epochs(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.begins: list[float] = []
            self.ends: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begins.append(time.perf_counter())

        # Keras has fetched the loss, so all steps are complete.
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

    epochs, utilisation = Epochs(), Utilisation()
    model.fit(batches, steps_per_epoch=steps, epochs=_EPOCHS, callbacks=[epochs], shuffle=False, verbose=0)
    took = [end - begin for begin, end in zip(epochs.begins[1:], epochs.ends[1:])]
    return TrainingSpeed(statistics.median(took) / steps, utilisation.stop(epochs.begins[1], epochs.ends[-1]))


def prefetch_to_device(data: Any) -> Any:
    """Copies batches to the GPU in advance with TensorFlow's `prefetch_to_device`."""
    import tensorflow as tf

    return data.apply(tf.data.experimental.prefetch_to_device(tf.config.list_logical_devices("GPU")[0].name))


def same_batch(batches: Any, backend: str) -> Any:
    """Repeats one batch that is already on the device."""
    import keras
    import tensorflow as tf

    batch = next(iter(batches))
    if backend == "tensorflow":
        data = tf.data.Dataset.from_tensors(batch).repeat()
        return prefetch_to_device(data) if has_gpu(backend) else data
    on_device = tuple(keras.ops.convert_to_tensor(values.numpy()) for values in batch)

    def repeat() -> Iterator[tuple[Any, ...]]:
        while True:
            yield on_device

    return repeat()


def run(options: argparse.Namespace) -> None:
    import keras  # Imported before TensorFlow, because importing torch after TensorFlow has crashed the process.

    if options.backend != "tensorflow":
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")  # TensorFlow only reads the data, and would reserve the GPU's memory.
    import tf_input

    keras.config.set_dtype_policy(options.precision)
    data, on_gpu = tf_input.open(options.dataset), has_gpu(options.backend)
    print(f"{options.model}, {options.backend}, {options.precision}, batches of {options.batch_size} of {options.image_size} px")
    print(FORMAT.format("", "input alone", "training", "idle (device", "idle (nvidia-"))
    print(FORMAT.format("", "images/s", "images/s", "batch)", "smi)"))
    for name, batches, first in make_variants(data, options):
        alone = read_alone(batches, options.steps)
        model = make_model(options, len(data.class_names), first)
        device_speed = train(model, same_batch(batches, options.backend), options.steps)
        feeds = [(name, batches.repeat())]
        if on_gpu and options.backend == "tensorflow":
            feeds.append(("    prefetched", prefetch_to_device(batches.repeat())))
        for name, feed in feeds:
            speed = train(model, feed, options.steps)
            idle = f"{max(0.0, 1 - device_speed.seconds / speed.seconds):.1%}" if on_gpu else "-"
            seen = "-" if speed.busy is None or not on_gpu else f"{1 - speed.busy:.1%}"
            rates = [f"{options.batch_size / seconds:,.0f}" for seconds in (alone, speed.seconds)]
            print(FORMAT.format(name, *rates, idle, seen), flush=True)
    if not on_gpu:
        print("no GPU: idle share not measured")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", metavar="DATASET", help="Directory of a prepared dataset with class labels.")
    parser.add_argument("--backend", choices=("jax", "torch", "tensorflow"), default="jax")
    parser.add_argument("--model", choices=("resnet50", "tiny"), default="resnet50")
    parser.add_argument("--precision", default="mixed_bfloat16", help="Keras's dtype policy. Default: mixed_bfloat16.")
    parser.add_argument("--split", default="train")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=50, help="Steps per epoch. Three epochs are trained. Default: 50.")
    options = parser.parse_args(arguments)
    os.environ["KERAS_BACKEND"] = options.backend  # Must be set before the import of Keras.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
