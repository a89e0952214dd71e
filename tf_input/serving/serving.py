"""Implements `export_serving`, which exports a model together with its preprocessing as one SavedModel."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Mapping
from numbers import Real
from typing import Any, Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_input.dataset_format import label_file_name
from tf_input.read_config import ImageSize, ReadConfig
from tf_input.serving.serving_checks import check_fed, check_inputs, check_predictions, prediction_tolerance
from tf_input.serving.serving_outputs import ModelOutput, make_outputs, name_predictions
from tf_input.serving.serving_inputs import ServingInputs
from tf_input.serving.serving_origin import check_unmapped, find_origin
from tf_input.storage.paths import is_url

BACKENDS = ("tensorflow", "jax")
_NUM_CHECKED = 32  # number of examples for which the exported model is compared with the original model
_WAIT_MICROSECONDS = 2000  # time for which an incomplete batch waits for further calls
_BATCH_THREADS = 4


@dataclasses.dataclass(frozen=True)
class ServingConfig:
    """Options of `export_serving`.

    Attributes:
        transform: Whether the model was trained with `batches(transform=True)`. This attribute and the next six are
            needed only if `train` is a dataset or a directory. Default: None.
        image_size: The image size in training, as in `batches`. Default: None.
        interpolation: How pixels were computed in training, as in `batches`. Default: None.
        channels: The number of image channels in training, as in `batches`. Default: None.
        fit: How images were fitted to `image_size` in training, as in `batches`. Default: None.
        inputs: The names of the model's input features, as in `batches`. Default: None.
        targets: The names of the features that the model predicts, as in `batches`. Default: None.
        label_names: The class names of the only target, if the dataset has no class names, as for integers from a
            vocabulary. Default: None.
        from_logits: Whether class predictions are logits instead of probabilities. Default: None, which uses the loss
            of the compiled model.
        threshold: The lowest score of returned labels, from 0 to 1, for a target with any number of labels. Default:
            0.5.
        overwrite: Whether to replace an existing SavedModel, after the new one is complete. Default: False.
        max_pixels: The largest image, as height times width in pixels. Larger images are rejected by their header,
            before decoding. Default: 64,000,000.
        max_batch_size: The largest number of images from concurrent calls that the model processes together. Each call
            is decoded separately, so a corrupt image fails only its own call. Use this attribute for servers with many
            clients. Each call may wait 2 ms for further calls. Default: None, which processes each call alone.

    Raises:
        ValueError: An attribute has a wrong value.
    """

    transform: bool | None = None
    image_size: ImageSize | Mapping[str, ImageSize] | None = None
    interpolation: str | None = None
    channels: int | None = None
    fit: str | None = None
    inputs: str | tuple[str, ...] | None = None
    targets: str | tuple[str, ...] | None = None
    label_names: Sequence[str] | None = None
    from_logits: bool | None = None
    threshold: float = 0.5
    overwrite: bool = False
    max_pixels: int = 64_000_000
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_batch_size"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value > 0 or (value is None and name == "max_batch_size")):
                raise ValueError(f"{name}={value!r} is invalid. Pass a positive integer.")
        if self.from_logits not in (None, False, True):
            raise ValueError(f"from_logits={self.from_logits!r} is invalid. Pass True, False or None.")
        if not isinstance(self.threshold, Real) or not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold!r} is invalid. Pass a number from 0 to 1.")
        if isinstance(self.label_names, str) or not all(isinstance(name, str) for name in self.label_names or ()):
            raise ValueError(f"label_names={self.label_names!r} is invalid. Pass a list of class names, or None.")
        # ReadConfig checks the values
        ReadConfig(_NUM_CHECKED, **{name: value for name, value in self.reading_options.items() if value is not None})

    @property
    def reading_options(self) -> dict[str, Any]:
        """The reading options of the training run, with None for options that are not set."""
        return {name: getattr(self, name) for name in ("transform", "image_size", "interpolation", "channels", "fit", "inputs", "targets")}


def export_serving(model: keras.Model, train: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Writes a SavedModel that maps raw images to class names and scores. Serving the exported model requires only
    TensorFlow.

    Requests are preprocessed like `train`, including its transform if it has one, but are not augmented. If the model
    was trained elsewhere, pass its dataset and the options of the training run instead:

        tf_input.export_serving(model, "out/flowers", "models/flowers/1", transform=False, image_size=224, fit="crop")
        tf_input.export_serving(model, "out/flowers", "models/flowers/1", transform=True)

        served = tf.saved_model.load("models/flowers/1").signatures["serving_default"]
        served(image=tf.constant([open("rose.jpg", "rb").read()]))["label"]

    The signatures accept any number of examples (a JAX model needs at least one):

    - `serving_default` takes `image`, string [batch]: the contents of JPEG, PNG, GIF, BMP or WebP files of any size.
      If the dataset stores raw pixels, `image` contains raw pixels in the same format. The signature returns `label`,
      string [batch], and `scores`, float32 [batch, classes]. The scores of an example sum to 1. For a multi-label
      target, `label` is string [batch, n], padded with "", and each class has an independent score. For a target
      without class names, the signature returns `value`, float32 [batch, ...]. With several targets, the outputs are
      named `TARGET/label`, `TARGET/scores` and `TARGET/value`.
    - `preprocess` takes `image`, and returns the inputs of the model by name.

    If the model's inputs depend on additional raw features, the signatures have an argument with the name of each
    feature. Additional images are passed as file contents. Variable-length lists are passed as two tensors: the padded
    lists NAME, [batch, n], and their lengths NAME_length, int64 [batch]. Lists of classes contain class indices. The
    class names are also stored as assets of the SavedModel, one per line.

    The SavedModel does not repeat the image processing of `recordmill prepare`. TensorFlow ignores the EXIF
    orientation, so clients must rotate photos upright before sending them. If the dataset was prepared with
    `--image_size`, clients should send images of that size, because `recordmill prepare` downscales more smoothly.

    The SavedModel is loaded again and compared with `batches` without augmentation, on examples of the dataset. The
    preprocessed images must be bit-identical to the images from `batches`. There is one exception: pixel values from 0
    to 255 may differ by 1 if all stored images have the same size, and are at most 96 x 96 pixels or cached before
    resizing. Predictions may have rounding differences of up to 1e-4 of the largest prediction, if the model computes
    in float32. Models that were obviously not trained on these inputs are rejected. For example, the inputs may have
    the wrong shape or range, or they may be normalized although the model normalizes its inputs itself.

    Examples:
        ```python
        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        model.fit(train, epochs=10)
        tf_input.export_serving(model, train, "models/flowers/1")
        ```

    Args:
        model: A Keras model, on the TensorFlow or JAX backend.
        train: The training data: the return value of `PreparedDataset.batches` or `as_numpy`, or a `tf_input.Sequence`,
            with any split and seed. In another process, call `batches` with the same options. Alternatively, the
            dataset or its directory, together with the options of the training run. After `recordmill transform`, pass the
            original dataset: its transform accepts raw images.
        path: The path of a local directory. Parent directories are created. TensorFlow Serving expects a version number
            as its name, such as `models/flowers/1`.
        **options: The attributes of `ServingConfig`.

    Raises:
        FileExistsError: The path exists or, with `overwrite`, is not a SavedModel.
        FileNotFoundError: The dataset or its transform does not exist.
        OSError: The dataset can't be read, or the path can't be written.
        RuntimeError: The exported model behaves differently from training. Nothing is written.
        ValueError: An option has a wrong value or does not fit the model, the model can't be served, or the options of
            its training are unknown.
    """
    config, path = ServingConfig(**options), _check_path(path)
    _check_backend(model)
    if path.exists() and not config.overwrite:
        raise FileExistsError(f"{path} exists. Pass a new path, or overwrite=True.")
    if path.exists() and not (path / "saved_model.pb").is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(
            f"{path} exists and is not a SavedModel, so overwrite=True does not replace it. Pass a new path."
        )
    check_unmapped(model, train)
    inputs = ServingInputs(find_origin(train, config.reading_options, _NUM_CHECKED), config.max_pixels)
    raw, x, specs = inputs.sample(_NUM_CHECKED)
    if config.max_batch_size is not None and any(None in item.shape[1:] for item in tf.nest.flatten(specs)):
        raise ValueError(
            f"max_batch_size={config.max_batch_size}: lists differ in length between requests, so they can't be "
            "batched. "
            "Use max_batch_size=None, or train with padding=LENGTH"
        )
    targets = inputs.decoder.targets
    check_fed(model, x)
    predicted = _predict(model, x, targets)
    names = config.label_names, config.from_logits, config.threshold
    outputs = make_outputs(model, inputs.decoder.features, targets, predicted, *names)
    with _scratch(path) as scratch:
        _write(model, inputs, outputs, specs, config.max_batch_size, scratch)
        _check(scratch / "served", model, inputs, outputs, raw, x, predicted)
        _publish(scratch, path)


def _check_path(path: str | os.PathLike[str]) -> pathlib.Path:
    if is_url(path):
        raise ValueError(
            f"path={os.fspath(path)!r} is a URL. Pass a local directory, and copy it to its bucket afterwards."
        )
    return pathlib.Path(path).expanduser().absolute()


def _check_backend(model: Any) -> None:
    if not isinstance(model, keras.Model):
        of_keras_2 = ", but one of Keras 2 (`tf_keras`)" * type(model).__module__.startswith("tf_keras")
        raise ValueError(f"model={model!r} is not a Keras 3 model{of_keras_2}. Pass a `keras.Model`.")
    if (backend := keras.backend.backend()) not in BACKENDS:
        raise ValueError(
            f"KERAS_BACKEND={backend} can't export. Save the model, and load it with {' or '.join(BACKENDS)}."
        )


def _predict(model: keras.Model, x: Any, targets: Sequence[str]) -> dict[str, np.ndarray]:
    try:
        predictions = model(x, training=False)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        input_spec = tf.nest.map_structure(lambda item: f"{item.dtype} {[None, *item.shape[1:]]}", x)
        raise ValueError(f"The model can't be called with {input_spec}. Use the options from its training.") from error
    return name_predictions(model, keras.tree.map_structure(keras.ops.convert_to_numpy, predictions), targets)


def _write(
    model: keras.Model,
    inputs: ServingInputs,
    outputs: Mapping[str, ModelOutput],
    specs: Any,
    max_batch_size: int | None,
    scratch: pathlib.Path,
) -> None:
    """Writes the SavedModel. On every backend, Keras first exports the trained model to a TensorFlow graph."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    # Explicit, because augmentation layers are active by default.
    archive.add_endpoint("serve", lambda x: model(x, training=False), [specs])
    archive.write_out(os.fspath(scratch / "network"), verbose=False)
    root = tf.Module()
    root.network = tf.saved_model.load(os.fspath(scratch / "network"))
    root.transform = inputs.tracked
    root.label_names = [_asset(scratch, output) for output in outputs.values() if output.label_names]
    targets = tuple(outputs)
    network = root.network.serve if max_batch_size is None else _batched(root.network.serve, specs, max_batch_size)

    read = tf.function(inputs, input_signature=[inputs.specs], autograph=False)  # shared by both signatures

    def serve(raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        predictions = name_predictions(model, network(read(raw)), targets)
        served_outputs = {name: outputs[name].outputs(values) for name, values in predictions.items()}
        return _flat(served_outputs) if len(served_outputs) > 1 else served_outputs[targets[0]]

    def preprocess(raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        x = read(raw)
        return x if isinstance(x, Mapping) else {inputs.decoder.config.input_names[0]: x}

    signatures = {
        name: tf.function(function, input_signature=[inputs.specs], autograph=False)
        for name, function in (("serving_default", serve), ("preprocess", preprocess))
    }
    # Served models are not trained, and gradients of JAX functions can't be saved a second time.
    save_options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(root, os.fspath(scratch / "served"), signatures, save_options)


def _batched(network: Callable[[Any], Any], specs: Any, max_batch_size: int) -> Callable[[Any], Any]:
    """Runs the model on the decoded images of several requests together. A corrupt image fails only its own request."""
    batch = tf.nondifferentiable_batch_function(_BATCH_THREADS, max_batch_size, _WAIT_MICROSECONDS)
    joined = batch(lambda *tensors: network(tf.nest.pack_sequence_as(specs, tensors)))
    return lambda x: joined(*tf.nest.flatten(x))


def _flat(outputs: Mapping[str, Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    return {f"{target}/{name}": value for target, item in outputs.items() for name, value in item.items()}


def _asset(scratch: pathlib.Path, output: ModelOutput) -> tf.saved_model.Asset:
    file = scratch / label_file_name(output.target)
    file.write_text("".join(f"{name}\n" for name in output.label_names))
    return tf.saved_model.Asset(os.fspath(file))


def _check(
    path: pathlib.Path,
    model: keras.Model,
    inputs: ServingInputs,
    outputs: Mapping[str, ModelOutput],
    raw: Mapping[str, np.ndarray],
    x: Any,
    predicted: Mapping[str, np.ndarray],
) -> None:
    """Checks that the SavedModel gives the same inputs and predictions as the trained model."""
    served = tf.saved_model.load(os.fspath(path))
    raw = {name: tf.constant(values) for name, values in raw.items()}
    served_inputs = served.signatures["preprocess"](**raw)
    expected = x if isinstance(x, Mapping) else {next(iter(served_inputs)): x}
    for name, values in expected.items():
        check_inputs(name, served_inputs[name].numpy(), values, inputs.rounding)
    answers, tolerance = served.signatures["serving_default"](**raw), prediction_tolerance(model)
    predictions = name_predictions(model, served.network.serve(tf.nest.map_structure(tf.constant, x)), tuple(outputs))
    answered = predicted
    if inputs.rounding:  # if the inputs differ within the tolerance, the predictions differ, too
        seen = {name: served_inputs[name] for name in expected} if isinstance(x, Mapping) else next(iter(served_inputs.values()))
        again = name_predictions(model, served.network.serve(seen), tuple(outputs))
        answered = {name: again[name].numpy() for name in outputs}
    for name, output in outputs.items():
        check_predictions(f"predictions of {name!r}", predictions[name].numpy(), predicted[name], tolerance)
        prefix = f"{name}/" if len(outputs) > 1 else ""
        for output, values in output.outputs(tf.constant(answered[name])).items():
            if output != "label":
                check_predictions(f"{prefix}{output}", answers[f"{prefix}{output}"].numpy(), values.numpy(), tolerance)


@contextlib.contextmanager
def _scratch(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Context manager for a hidden temporary folder next to the path. A single rename can publish the folder.

    Servers that scan the parent folder for model versions ignore hidden folders.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        yield pathlib.Path(folder)


def _publish(scratch: pathlib.Path, path: pathlib.Path) -> None:
    if path.exists():
        path.rename(scratch / "replaced")
    try:
        (scratch / "served").rename(path)
    except BaseException:  # restores the previous model, also after Ctrl-C
        if (scratch / "replaced").exists():
            (scratch / "replaced").rename(path)
        raise
