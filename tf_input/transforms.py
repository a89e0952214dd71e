"""The transform of a data set, as its reader has it: what it says, its graph, and records -> transformed features."""

import functools
import hashlib
import os
import pathlib
import tempfile
from typing import Any, Collection, Iterable, Mapping

import tensorflow as tf

from tf_input import class_weights, locations
from tf_input.dataset_format import IMAGE, Feature, Manifest
from tf_input.description import Description
from tf_input.example_decoder import STORED_KINDS, ExampleDecoder
from tf_input.read_config import ReadConfig
from tf_input.schema import parse_examples
from tf_input.targets import with_inputs
from tf_input.transform_format import TRANSFORM, TRANSFORM_FN, TransformInfo, decode_transform
from tf_input.transform_graph import TransformGraph

_SAVED_MODEL = f"{TRANSFORM_FN}/saved_model.pb"
_VARIED = "`map_batch`, or layers of the model that work in training alone, vary what a transform gives"
_SHOWN = "`recordmill analyze --image_size=... --fit=...` says what the transform shows of an image"


class Transform:
    """What `recordmill analyze` wrote beside a data set.

    Args:
        directory: Of the data set.
        source: Reads its files.
        cache: Where a copy is kept of what TensorFlow does not read itself.
        manifest: Of the data set.

    Attributes:
        info: What it says of itself.
        digest: Another one, another transform.

    Raises:
        FileNotFoundError: There is none.
        OSError: It can't be read.
        ValueError: It is damaged, or of another version of the data set.
    """

    def __init__(
        self, directory: str | os.PathLike[str], source: locations.Source, cache: pathlib.Path | None, manifest: Manifest
    ) -> None:
        self._directory, self._source, self._cache = directory, source, cache
        path = locations.join(directory, TRANSFORM)
        try:
            data, graph = source.read(path), source.read(locations.join(directory, _SAVED_MODEL))
        except FileNotFoundError:
            raise FileNotFoundError(f"{directory} has no transform; expected `recordmill analyze {directory}` first") from None
        self.info: TransformInfo = decode_transform(data, path, manifest)
        self.digest = hashlib.sha256(data + graph).hexdigest()

    @functools.cached_property
    def graph(self) -> TransformGraph:
        """Loaded once, when it is first needed."""
        with tf.device("CPU:0"):  # where data are read, and where its tables are
            return TransformGraph(self._local_copy())

    def _local_copy(self) -> str:
        path = locations.join(self._directory, TRANSFORM_FN)
        if not isinstance(self._source, locations.FsspecSource):
            return path
        kept = self._cache / f"{TRANSFORM_FN}-{self.digest[:16]}"
        if not kept.exists():
            self._cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
                self._source.copy_directory(path, copy := os.path.join(scratch, TRANSFORM_FN))
                try:
                    os.rename(copy, kept)
                except OSError:  # another process was quicker
                    if not kept.exists():
                        raise
        return os.fspath(kept)

    def parse(self, serialized: tf.Tensor, schema: Iterable[Feature], names: Collection[str]) -> dict[str, Any]:
        """Records -> some transformed features; what these do not depend on is not parsed.

        Args:
            serialized: string [batch].
            schema: Of the records.
            names: Of the transformed features.

        Returns:
            By name, [batch, ...], ragged where the preprocessing made such.
        """
        inputs = parse_examples(serialized, schema, self.graph.inputs_of(names))
        outputs = self.graph.apply(inputs, names)
        for value in outputs.values():
            if isinstance(value, tf.Tensor):  # the graph does not know how many examples a batch has
                value.set_shape([serialized.shape[0], *value.shape[1:]])
        return outputs



def make_decoder(transform: Transform, dataset: Description, config: ReadConfig, split: str) -> ExampleDecoder:
    """Records -> batches of transformed features: as for any data set, from another schema.

    Raises:
        ValueError: An option is not the reader's to say, or the transform does not give what is asked for.
    """
    info, features = transform.info, transform.info.features
    _check_options(config, features)
    targets = config.target_names(info.targets)
    config = with_inputs(config, features, targets)
    size = _stored_size(features, (*config.input_names, *targets), dataset)
    heads = class_weights.heads(features, targets)
    are_counted = all(features[name] == dataset.features.get(name) for name in heads)
    decoder = ExampleDecoder(
        parse=lambda serialized, names: transform.parse(serialized, dataset.manifest.schema, names),
        features=features,
        config=config,
        targets=targets,
        image_size=config.height_and_width or size,
        stored_size=size,
        mask_dtype=dataset.mask_dtype,
        class_weights=class_weights.tables(
            config.class_weight, features, targets, dataset.statistics if are_counted else None, split
        ),
    )
    if decoder.image_size is None and any(_is_stored(features.get(name)) for name in config.input_names):
        raise ValueError("image_size=None: images differ in size; expected a size such as 224, or (height, width)")
    return decoder


def _check_options(config: ReadConfig, features: Mapping[str, Feature]) -> None:
    """What is seen of images is the transform's business, unless it passes them on as they are stored."""
    if _is_stored(features.get(IMAGE)):
        return
    for name, expected, instead in (("image_size", None, _SHOWN), ("fit", "crop", _SHOWN), ("augment", False, _VARIED)):
        if (value := getattr(config, name)) != expected:
            raise ValueError(f"{name}={value!r}: expected {expected!r} with transform=True: {instead}")


def _stored_size(features: Mapping[str, Feature], names: Collection[str], dataset: Description) -> tuple[int, int] | None:
    """(height, width) of images and masks that are passed on as they are stored; None if they differ, or none is asked for."""
    stored = [name for name in names if _is_stored(features.get(name))]
    if not stored:
        return None
    if dataset.image_size is None and not _is_stored(features.get(IMAGE)):
        raise ValueError(
            f"{', '.join(stored)}: the transform passes on what is stored, in different sizes; expected one that decodes it"
        )
    return dataset.image_size


def _is_stored(feature: Feature | None) -> bool:
    return feature is not None and feature.kind in STORED_KINDS
