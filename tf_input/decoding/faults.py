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
        return describe_fault(None if decoder.parse_keys is None else decoder.parse_keys(records).numpy()[0], error)
    return ""


def describe_fault(key: bytes | None, error: tf.errors.OpError) -> str:
    """Describes why an example can't be decoded. The description contains the example's key if the example has a
    key."""
    reason = " ".join(_OF_TENSORFLOW.sub("", error.message.partition("\n\t [[")[0].rpartition("\n\n")[2]).split())
    name = "an example without a key" if key is None else repr(key.decode(errors="replace"))
    return f"{name} can't be decoded: {reason}"
