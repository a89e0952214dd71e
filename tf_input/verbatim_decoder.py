"""Uses the user function `parse` to decode the records of datasets prepared with `--records verbatim`."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping

from tf_input.dataset_format import Feature
from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.lazy_tensorflow import tf
from tf_input.pipeline.packing import split_keys
from tf_input.pipeline.user_functions import call_each, check_parsed, convert_parse, parse_error
from tf_input.read_config import ReadConfig

RECORD = "record"  # the name of the only feature, which contains the whole record
_FEATURES: Mapping[str, Feature] = {RECORD: Feature(RECORD, "text")}
# Options that require the features of records, which are unknown.
_OF_FEATURES = (
    *("image_size", "channels", "augment", "fit", "inputs", "targets", "padding"),
    *("class_weight", "one_hot", "balance", "transform", "interpolation"),
)


@dataclasses.dataclass(frozen=True)
class VerbatimDecoder(ExampleDecoder):
    """A function that parses a batch of records with the user function `parse`.

    Attributes:
        parse_record: The user function that parses a record. None returns records without parsing.
        num_outputs: The length of the tuple that `parse_record` returns; 1 if it returns `x`.
    """

    parse_record: Callable[[tf.Tensor], Any] | None = None
    num_outputs: int = 1

    @property
    def has_targets(self) -> bool:
        """Whether batches are `(x, y)` or `(x, y, weight)`."""
        return self.num_outputs > 1

    def _batch(self, parsed: Mapping[str, Any], seed: tf.Tensor | None, slots: tf.Tensor | None) -> Any:
        if self.parse_record is None:
            return parsed[RECORD]
        outputs = call_each(self.parse_record, parsed[RECORD])
        if not self.has_padding or not self.has_targets:
            return outputs
        weight = tf.cast(slots >= 0, tf.float32)
        x, y, *weights = outputs
        return x, y, tf.nest.map_structure(lambda item: item * _expand(weight, item), weights[0]) if weights else weight


def _expand(weight: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Reshapes weights [batch] so that they can be multiplied by values [batch, ...]."""
    return tf.cast(tf.reshape(weight, [-1, *[1] * (values.shape.rank - 1)]), values.dtype)


def make_verbatim_decoder(config: ReadConfig, title: str) -> VerbatimDecoder:
    """Returns a decoder that parses records with `config.parse`.

    Args:
        config: The reading options.
        title: The name of the dataset and the split, for messages.

    Raises:
        ValueError: An option does not apply to records of unknown contents, or `parse` fails.
    """
    for name in _OF_FEATURES:
        if (value := getattr(config, name)) != (default := getattr(ReadConfig, name)):
            raise ValueError(
                f"{name}={value!r} does not apply to a dataset of --records verbatim, whose features are unknown. Leave it at "
                f"{default!r}, and let parse=... return the values."
            )
    parse = None if config.parse is None else convert_parse(config.parse)
    return VerbatimDecoder(
        parse=lambda records, names: {RECORD: split_keys(records)[1] if config.with_keys else records},
        features=_FEATURES,
        config=dataclasses.replace(config, inputs=(RECORD,)),
        targets=(),
        image_size=None,
        stored_size=None,
        parse_keys=(lambda records: split_keys(records)[0]) if config.with_keys else None,
        parse_record=parse,
        num_outputs=1 if parse is None else _num_outputs(parse, f"{title}: parse={config.parse!r}"),
    )


def _num_outputs(parse: Callable[[tf.Tensor], Any], source: str) -> int:
    try:
        spec = tf.data.Dataset.from_tensors("").map(parse).element_spec
    except (tf.errors.OpError, TypeError, ValueError) as error:
        raise parse_error(source, error) from error
    check_parsed(source, spec)
    for leaf in tf.nest.flatten(spec):
        if leaf.shape.rank is None:
            raise ValueError(f"{source} returned {leaf}, whose number of dimensions is unknown. Call tf.ensure_shape in the function.")
    return len(spec) if isinstance(spec, tuple) else 1
