"""What a served model is fed with: raw features in, what the model was trained on out."""

import dataclasses
from typing import Any, Mapping

import numpy as np
import tensorflow as tf

from tf_input import decode, schema, whole_images
from tf_input.dataset import PreparedDataset
from tf_input.dataset_format import IMAGE
from tf_input.example_decoder import ExampleDecoder
from tf_input.feature_kinds import SIDES
from tf_input.read_config import ReadConfig

_ANY_NUMBER = 1  # a batch size that unrolls nothing


class ServingInputs:
    """The way from raw features to the model, without records, targets, and what is known of stored images.

    Args:
        dataset: The data set on which the model was trained.
        config: How it was read: inputs, targets, and `transform`, or `image_size` and `fit`.

    Attributes:
        decoder: Makes the training batches.
        specs: Of the raw features on which the inputs depend, by name: [batch, ...] as they are parsed from records.

    Raises:
        ValueError: An option has a wrong value, or raw features differ in size, which no signature takes.
    """

    def __init__(self, dataset: PreparedDataset, config: ReadConfig) -> None:
        split = min((one for one in dataset.splits if dataset.num_examples(one)), key=dataset.num_examples)
        self._plan = dataset.plan(split, config)
        self.decoder = self._plan.decoder
        self._schema = dataset.manifest.schema
        self._transform = dataset.loaded_transform if config.transform else None
        self._any_size = _of_any_size(self.decoder)
        self._same_size = _of_same_size(self.decoder)
        names = self._any_size.wanted()
        raw = names if self._transform is None else self._transform.graph.inputs_of(names)
        self.specs = {}
        for name, spec in schema.feature_spec(dataset.features[name] for name in raw).items():
            if isinstance(spec, tf.io.RaggedFeature):
                found = f"inputs={self._any_size.config.input_names!r} depend on {name!r}"
                raise ValueError(f"{found}, of which examples differ in how many values they have; expected others")
            self.specs[name] = tf.TensorSpec([None, *spec.shape], spec.dtype, name)

    @property
    def rounding(self) -> int:
        """By how much pixels may differ: TensorFlow computes where it samples small images whole in the order that it likes."""
        return 0 if self._same_size is None else 1

    @property
    def tracked(self) -> Any:
        """What an exported model has to hold."""
        return None if self._transform is None else self._transform.graph.model

    def __call__(self, raw: Mapping[str, tf.Tensor]) -> Any:
        """Raw features of a batch, as `specs` says -> `x`, as `batches` gives it."""
        parsed = dict(raw)
        if self._transform is not None:
            parsed = self._transform.graph.apply(raw, self._any_size.wanted())
        if self._same_size is None:
            return self._any_size.outputs(parsed)
        # Small images of one size are decoded whole where a data set has them, which rounds otherwise.
        sizes = decode.stored_sizes(parsed[IMAGE])
        is_same = tf.reduce_all(sizes == tf.constant(self.decoder.stored_size, sizes.dtype))
        return tf.cond(is_same, lambda: self._same_size.outputs(parsed), lambda: self._any_size.outputs(parsed))

    def sample(self, count: int) -> tuple[dict[str, np.ndarray], Any]:
        """Some examples of the data set, from all over a split.

        Returns:
            Their raw features, and `x` as a training batch has it; NumPy arrays.
        """
        total = self._plan.reader.num_examples
        records = self._plan.reader.read(np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64)))
        raw = schema.parse_examples(tf.constant(records), self._schema, list(self.specs))
        data = tf.data.Dataset.from_tensors(tf.constant(records)).map(tf.autograph.experimental.do_not_convert(self.decoder))
        x = data.get_single_element()
        x = x[0] if self.decoder.targets else x
        if not all(isinstance(one, tf.Tensor) for one in tf.nest.flatten(x)):
            raise ValueError(f"inputs={self.decoder.config.input_names!r}: ragged tensors are not served")
        return tf.nest.map_structure(lambda one: one.numpy(), (raw, x))


def _of_any_size(decoder: ExampleDecoder) -> ExampleDecoder:
    """Without targets; images of any size, of which nothing is known but their bytes."""
    config = dataclasses.replace(decoder.config, batch_size=_ANY_NUMBER)
    alone = dataclasses.replace(decoder, config=config, targets=(), class_weights={})
    names = config.input_names
    if not any(decoder.features[name].kind == "image" for name in names if name in decoder.features):
        return alone
    features = {name: one for name, one in decoder.features.items() if name not in SIDES or name in names}
    return dataclasses.replace(alone, features=features, stored_size=None, max_size=None)


def _of_same_size(decoder: ExampleDecoder) -> ExampleDecoder | None:
    """For images of the stored size; None where that makes no difference."""
    size, image = decoder.stored_size, decoder.features.get(IMAGE)
    if size is None or size == decoder.image_size or not whole_images.is_small(size) or image is None or image.kind != "image":
        return None
    config = dataclasses.replace(decoder.config, batch_size=_ANY_NUMBER)
    return dataclasses.replace(decoder, config=config, targets=(), class_weights={})
