"""Declares the kinds of features in the file format, for the writer and the reader.

The module `features/KIND.py` in each of the two packages has the code for a kind. Other modules do not compare names of
kinds: they ask for the properties of a `Feature`, or call a method of its kind.
"""

from typing import Mapping, NamedTuple

# Dtypes of tensors, which NumPy, TensorFlow (`tf.io.decode_raw`) and TensorFlow Datasets can all read.
TENSOR_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64")


class StoredKind(NamedTuple):
    """Declares how the values of a kind are stored.

    Attributes:
        storage: The type of the list in a `tf.train.Example`: `bytes`, `int64` or `float`.
        dtype: The dtype of the values of a feature without its own dtype; empty for values that are not numbers.
        dtypes: The possible values of `Feature.dtype`.
        is_file: Whether the value is a byte string with the contents of an image file.
        is_raw: Whether the value is a byte string with the numbers of an array, little-endian, in C order.
        is_image: Whether the value is an image with its own height and width. A mask is not an image.
        is_spatial: Whether the value refers to pixels or positions of `image`, and follows its crops and flips.
        is_categorical: Whether values are class indices, which refer to the feature's class names.
        is_only_in_objects: Whether the reader returns the values only within `objects`.
    """

    storage: str
    dtype: str = ""
    dtypes: tuple[str, ...] = ("",)
    is_file: bool = False
    is_raw: bool = False
    is_image: bool = False
    is_spatial: bool = False
    is_categorical: bool = False
    is_only_in_objects: bool = False


FEATURE_KINDS: Mapping[str, StoredKind] = {
    # an encoded JPEG or PNG (or WebP if requested)
    "image": StoredKind("bytes", "uint8", ("", "uint16"), is_file=True, is_image=True),
    # a raw image: uint8 of the feature's shape, row by row
    "pixels": StoredKind("bytes", "uint8", is_raw=True, is_image=True),
    # numbers of the feature's dtype and shape; see `dataset_format.stored_features`
    "tensor": StoredKind("bytes", dtypes=TENSOR_DTYPES, is_raw=True),
    # a PNG with one channel of 8 or 16 bits: the class of each pixel of the image
    "mask": StoredKind("bytes", is_file=True, is_spatial=True),
    "text": StoredKind("bytes"),  # UTF-8
    "class_label": StoredKind("int64", "int64", is_categorical=True),
    "integer": StoredKind("int64", "int64"),
    "float": StoredKind("float", "float32"),
    # ymin, xmin, ymax, xmax, in 0..1
    "bbox": StoredKind("float", "float32", is_spatial=True, is_only_in_objects=True),
    # x, y and optionally visibility (0, 1 or 2) of each point; x and y in 0..1
    "keypoints": StoredKind("float", "float32", is_spatial=True),
}
