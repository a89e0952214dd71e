"""A model and what its training data went through, in one SavedModel: raw image bytes -> names of labels."""

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
from tf_input.serving.serving_heads import Head, make_heads, name_predictions
from tf_input.serving.serving_inputs import ServingInputs
from tf_input.serving.serving_origin import check_unmapped, find_origin
from tf_input.storage.paths import is_url

BACKENDS = ("tensorflow", "jax")
_NUM_CHECKED = 32  # examples
_WAIT_MICROSECONDS = 2000  # for another call, before a batch that is not full is computed
_BATCH_THREADS = 4


@dataclasses.dataclass(frozen=True)
class ServingConfig:
    """The options of what is served.

    Attributes:
        transform: Whether the model was trained with `batches(transform=True)`. As the next six, only where what it was trained on
            does not say it itself.
        image_size: The size of images that the model was trained on, as in `batches`.
        antialias: Whether the model was trained with `batches(antialias=True)`.
        channels: The number of channels that the model was trained on, as in `batches`.
        fit: The fit of images that the model was trained on, as in `batches`.
        inputs: The names of the features that the model is fed with, as in `batches`.
        targets: The names of the features that the model predicts, as in `batches`.
        label_names: The class names of the target, where the data set has none of it: of integers that a vocabulary gave.
        from_logits: Whether predictions of classes are logits; if not, they are probabilities. None: as the loss says with which
            the model was compiled.
        threshold: The lowest score with which a label is named, of a target with any number of labels.
        overwrite: Whether a SavedModel that is at the path is replaced, once the new one is whole.
        max_pixels: The largest height times width; a larger image is refused by what its header says, before it is decoded.
        max_batch_size: Images of several calls that come at about the same time are given to the model together, up to so many, each
            call decoded for itself before: an image that is damaged fails the call that it came with, and no other. It is for a
            server with many clients; a call on its own waits for 2 ms. None: each call is computed for itself.
    """

    transform: bool | None = None
    image_size: ImageSize | Mapping[str, ImageSize] | None = None
    antialias: bool | None = None
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
                raise ValueError(f"{name}={value!r}: expected an integer above 0")
        if self.from_logits not in (None, False, True):
            raise ValueError(f"from_logits={self.from_logits!r}: expected True, False or None")
        if not isinstance(self.threshold, Real) or not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold!r}: expected a number from 0 to 1")
        if isinstance(self.label_names, str) or not all(isinstance(name, str) for name in self.label_names or ()):
            raise ValueError(f"label_names={self.label_names!r}: expected class names, or None")
        ReadConfig(_NUM_CHECKED, **{name: value for name, value in self.reading_options.items() if value is not None})  # checks them

    @property
    def reading_options(self) -> dict[str, Any]:
        """How training batches were read; None where nothing is said."""
        return {name: getattr(self, name) for name in ("transform", "image_size", "antialias", "channels", "fit", "inputs", "targets")}


def export_serving(model: keras.Model, train: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Writes a SavedModel that takes raw images and answers names of labels; TensorFlow alone runs it.

        train = flowers.batches("train", batch_size=128, image_size=224, augment=True, seed=0)
        model.fit(train, epochs=10)
        tf_input.export_serving(model, train, "models/flowers/1")

    What is served is preprocessed as `train` was read, transform or not, but without what varies images. Of a model that was
    trained elsewhere, its data set and the options of its training say the same:

        tf_input.export_serving(model, "out/flowers", "models/flowers/1", transform=False, image_size=224, fit="crop")
        tf_input.export_serving(model, "out/flowers", "models/flowers/1", transform=True)

        served = tf.saved_model.load("models/flowers/1").signatures["serving_default"]
        served(image=tf.constant([open("rose.jpg", "rb").read()]))["label"]

    Its signatures, for any number of examples (of a model on JAX, one at least):

    - `serving_default` takes `image`, string [batch]: the bytes of JPEG, PNG, GIF, BMP or WebP files of any size (of a data set of
      raw pixels, as they are stored). It answers `label`, string [batch], and `scores`, float32 [batch, classes], which sum to 1. Of a
      target with any number of labels, `label` is string [batch, n], filled up with "", and scores are of each class for itself. Of a
      target without class names it answers `value`, float32 [batch, ...]. Of several targets they are `TARGET/label` and so on.
    - `preprocess` takes `image`, and answers what the model is fed with, by name.

    Where inputs depend on other raw features than the image, the signatures take these too, under their names: other images as files,
    like the first; and lists of any length (of classes by their numbers) filled up, [batch, n], with NAME_length, int64 [batch], how long
    each is. Class names are also among the SavedModel's assets, one a line.

    From the bytes of a stored image on, all is as in training. What `recordmill prepare` does before it stores them is not done:
    TensorFlow does not look at the EXIF orientation, so who sends photographs as a phone wrote them has to turn them upright first;
    and who prepared with `--image_size`, which makes images smaller more smoothly than decoding does, had best send them in that
    size.

    What was written is loaded again and asked about examples of the data set. It has to preprocess them to the very bits of what
    `batches` gives, without augmentation (images that are all stored in one size, and resized from pixels that are held in memory,
    or of up to 96 by 96: to within 1 of 255), and to predict what the model does, but for rounding: to 1e-4 of the largest
    prediction in float32. What the model is plainly not made for is refused: other shapes, fractions where it takes integers, images
    that are normalised before its own normalisation.

    Args:
        model: A Keras model, on the backend TensorFlow or JAX.
        train: The data that it was trained on: what `PreparedDataset.batches` (`as_numpy`) returned, or a `tf_input.Sequence`; with any
            `split` and seed, so that in another process `batches` with the same options does. Or the data set, or its directory, with the
            options of training. Of what `recordmill transform` wrote, the data set from which it was made: its transform takes raw images.
        path: The path of a local directory; parents are made. TensorFlow Serving wants its name to be a version, such as
            `models/flowers/1`.
        **options: The attributes of `ServingConfig`.

    Raises:
        FileExistsError: There is something at the path, or with `overwrite` something else than a SavedModel.
        FileNotFoundError: There is no data set, or no transform.
        OSError: It can't be read, or the path not be written.
        ValueError: An option has a wrong value, or does not fit the model, or the model can't be served; or nothing says how it was
            trained.
        RuntimeError: What was written did not do the same. Nothing is left of it.
    """
    config, path = ServingConfig(**options), _check_path(path)
    _check_backend(model)
    if path.exists() and not config.overwrite:
        raise FileExistsError(f"{path} exists; expected a new path, or overwrite=True")
    if path.exists() and not (path / "saved_model.pb").is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} is no SavedModel, and overwrite=True replaces nothing else")
    check_unmapped(model, train)
    inputs = ServingInputs(find_origin(train, config.reading_options, _NUM_CHECKED), config.max_pixels)
    raw, x, specs = inputs.sample(_NUM_CHECKED)
    if config.max_batch_size is not None and any(None in one.shape[1:] for one in tf.nest.flatten(specs)):
        raise ValueError(
            f"max_batch_size={config.max_batch_size}: lists of several calls differ in length; expected None, or training with max_length=..."
        )
    targets = inputs.decoder.targets
    check_fed(model, x)
    predicted = _predict(model, x, targets)
    names = config.label_names, config.from_logits, config.threshold
    heads = make_heads(model, inputs.decoder.features, targets, predicted, *names)
    with _scratch(path) as scratch:
        _write(model, inputs, heads, specs, config.max_batch_size, scratch)
        _check(scratch / "served", model, inputs, heads, raw, x, predicted)
        _publish(scratch, path)


def _check_path(path: str | os.PathLike[str]) -> pathlib.Path:
    if is_url(path):
        raise ValueError(f"path={os.fspath(path)!r}: expected a local directory; copy it to its bucket when it is whole")
    return pathlib.Path(path).expanduser().absolute()


def _check_backend(model: Any) -> None:
    if not isinstance(model, keras.Model):
        of_keras_2 = ", not of Keras 2 (`tf_keras`)" * type(model).__module__.startswith("tf_keras")
        raise ValueError(f"model={model!r}: expected a model of Keras 3{of_keras_2}")
    if (backend := keras.backend.backend()) not in BACKENDS:
        raise ValueError(f"KERAS_BACKEND={backend}: expected {' or '.join(BACKENDS)}; save the model, and load it on one of these")


def _predict(model: keras.Model, x: Any, targets: Sequence[str]) -> dict[str, np.ndarray]:
    try:
        predictions = model(x, training=False)
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        found = tf.nest.map_structure(lambda one: f"{one.dtype} {[None, *one.shape[1:]]}", x)
        raise ValueError(f"the model can't be called with {found}; expected the options with which it was trained") from error
    return name_predictions(model, keras.tree.map_structure(keras.ops.convert_to_numpy, predictions), targets)


def _write(
    model: keras.Model,
    inputs: ServingInputs,
    heads: Mapping[str, Head],
    specs: Any,
    max_batch_size: int | None,
    scratch: pathlib.Path,
) -> None:
    """By way of Keras's own export, which makes of a model on any backend a graph of TensorFlow."""
    archive = keras.export.ExportArchive()
    archive.track(model)
    # Said here, as layers that vary images take themselves to be in training where nobody says anything.
    archive.add_endpoint("serve", lambda x: model(x, training=False), [specs])
    archive.write_out(os.fspath(scratch / "network"), verbose=False)
    root = tf.Module()
    root.network = tf.saved_model.load(os.fspath(scratch / "network"))
    root.transform = inputs.tracked
    root.label_names = [_asset(scratch, head) for head in heads.values() if head.label_names]
    targets = tuple(heads)
    network = root.network.serve if max_batch_size is None else _batched(root.network.serve, specs, max_batch_size)

    read = tf.function(inputs, input_signature=[inputs.specs], autograph=False)  # traced, and written, once for both signatures

    def serve(raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        predictions = name_predictions(model, network(read(raw)), targets)
        found = {name: heads[name].outputs(values) for name, values in predictions.items()}
        return _flat(found) if len(found) > 1 else found[targets[0]]

    def preprocess(raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        x = read(raw)
        return x if isinstance(x, Mapping) else {inputs.decoder.config.input_names[0]: x}

    signatures = {
        name: tf.function(function, input_signature=[inputs.specs], autograph=False)
        for name, function in (("serving_default", serve), ("preprocess", preprocess))
    }
    # Nobody trains what is served; and gradients of JAX's functions can't be written a second time.
    save_options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(root, os.fspath(scratch / "served"), signatures, save_options)


def _batched(network: Callable[[Any], Any], specs: Any, max_batch_size: int) -> Callable[[Any], Any]:
    """Computes the inputs of several calls at once. A server's own batching would join encoded images, of which one fails all."""
    batch = tf.nondifferentiable_batch_function(_BATCH_THREADS, max_batch_size, _WAIT_MICROSECONDS)
    joined = batch(lambda *tensors: network(tf.nest.pack_sequence_as(specs, tensors)))
    return lambda x: joined(*tf.nest.flatten(x))


def _flat(outputs: Mapping[str, Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    return {f"{target}/{name}": value for target, one in outputs.items() for name, value in one.items()}


def _asset(scratch: pathlib.Path, head: Head) -> tf.saved_model.Asset:
    file = scratch / label_file_name(head.target)
    file.write_text("".join(f"{name}\n" for name in head.label_names))
    return tf.saved_model.Asset(os.fspath(file))


def _check(
    path: pathlib.Path,
    model: keras.Model,
    inputs: ServingInputs,
    heads: Mapping[str, Head],
    raw: Mapping[str, np.ndarray],
    x: Any,
    predicted: Mapping[str, np.ndarray],
) -> None:
    """Whether what was written does what training does."""
    served = tf.saved_model.load(os.fspath(path))
    raw = {name: tf.constant(values) for name, values in raw.items()}
    found = served.signatures["preprocess"](**raw)
    expected = x if isinstance(x, Mapping) else {next(iter(found)): x}
    for name, values in expected.items():
        check_inputs(name, found[name].numpy(), values, inputs.rounding)
    answers, tolerance = served.signatures["serving_default"](**raw), prediction_tolerance(model)
    predictions = name_predictions(model, served.network.serve(tf.nest.map_structure(tf.constant, x)), tuple(heads))
    answered = predicted
    if inputs.rounding:  # what is asked about is a little otherwise than what the model was
        seen = {name: found[name] for name in expected} if isinstance(x, Mapping) else next(iter(found.values()))
        again = name_predictions(model, served.network.serve(seen), tuple(heads))
        answered = {name: again[name].numpy() for name in heads}
    for name, head in heads.items():
        check_predictions(f"predictions of {name!r}", predictions[name].numpy(), predicted[name], tolerance)
        prefix = f"{name}/" if len(heads) > 1 else ""
        for output, values in head.outputs(tf.constant(answered[name])).items():
            if output != "label":
                check_predictions(f"{prefix}{output}", answers[f"{prefix}{output}"].numpy(), values.numpy(), tolerance)


@contextlib.contextmanager
def _scratch(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Beside the path, so that a rename is all that is left to do; hidden from a server that looks for versions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        yield pathlib.Path(folder)


def _publish(scratch: pathlib.Path, path: pathlib.Path) -> None:
    if path.exists():
        path.rename(scratch / "replaced")
    try:
        (scratch / "served").rename(path)
    except BaseException:  # a Ctrl-C too must not take away what was there
        if (scratch / "replaced").exists():
            (scratch / "replaced").rename(path)
        raise
