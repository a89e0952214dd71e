"""Describes why an example can't be decoded."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Callable

from tf_input.decoding.example_decoder import ExampleDecoder
from tf_input.lazy_tensorflow import tf

_OF_TENSORFLOW = re.compile(r"^{{function_node .*?}} | \[Op:\w+\] name: *$")
_UNKNOWN_FORMAT = "the header is corrupt, or the format is none of JPEG, PNG, GIF, BMP and WebP"
# Messages from TensorFlow's image decoders, and clearer reasons that replace them.
_REASONS = (
    (re.compile(r"Invalid (JPEG|PNG|GIF)\b"), r"the \1 data is corrupt or truncated"),
    (re.compile(r"Input size should match \(header_size"), "the BMP data is corrupt or truncated"),
    (re.compile(r"Input is empty"), "the image is empty (0 bytes)"),
    (re.compile(r"Unknown image file format"), _UNKNOWN_FORMAT),
)


def find_fault(decoder: ExampleDecoder, record: bytes, decode: Callable[[tf.Tensor], Any]) -> str:
    """Decodes a single record and returns a description of the error if decoding fails.

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
        return describe_fault(_find_key(decoder, records), error)
    except UnicodeDecodeError:  # TensorFlow's message quotes the record
        return describe_reason(_find_key(decoder, records), "the record can't be parsed")
    return ""


def _find_key(decoder: ExampleDecoder, records: tf.Tensor) -> bytes | None:
    """Returns the key of a single record; None if it has no key, or can't be parsed."""
    if decoder.parse_keys is None:
        return None
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        return decoder.parse_keys(records).numpy()[0]
    return None


def describe_fault(key: bytes | None, error: tf.errors.OpError) -> str:
    """Describes why an example can't be decoded. If the example has a key, the description contains the key."""
    reason = " ".join(_OF_TENSORFLOW.sub("", error.message.partition("\n\t [[")[0].rpartition("\n\n")[2]).split())
    reason = next((match.expand(plain) for pattern, plain in _REASONS if (match := pattern.search(reason))), reason)
    return describe_reason(key, reason)


def describe_reason(key: bytes | None, reason: str) -> str:
    """Describes why the example with the given key can't be decoded."""
    name = "an example without a key" if key is None else repr(key.decode(errors="replace"))
    return f"{name} can't be decoded: {reason}"
