"""Describes why an example can't be decoded."""

import re
from typing import Any, Callable

import tensorflow as tf

from tf_input.decoding.example_decoder import ExampleDecoder

_OF_TENSORFLOW = re.compile(r"^{{function_node .*?}} | \[Op:\w+\] name: *$")


def find_fault(decoder: ExampleDecoder, record: bytes, decode: Callable[[tf.Tensor], Any]) -> str:
    """Decodes a single record, and returns a description of the error if decoding fails.

    Args:
        decoder: The decoder of the record, which can parse its key.
        record: The serialized example.
        decode: A function that decodes records, string [n].

    Returns:
        The key of the example and the reason; "" if the example can be decoded.
    """
    records = tf.constant([record])
    try:
        decode(records)
    except tf.errors.InvalidArgumentError as error:
        reason = _OF_TENSORFLOW.sub("", error.message)
    else:
        return ""
    if decoder.parse_keys is None:
        return f"an example without a key can't be decoded: {reason}"
    return f"{decoder.parse_keys(records).numpy()[0].decode(errors='replace')!r} can't be decoded: {reason}"
