"""Feature kind `image`: an image file that TensorFlow decodes. Additional images can also have the kind `pixels`."""

from typing import Any

import numpy as np

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.elements.input_record import ArrayPart, FilePart
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.feature_kind import TFDS, EncodedExample, Encoder, EncoderOptions, FeatureKind, StoredImages
from beam_pipelines.images.image_headers import NEVER_STORED, check_storable, identify
from beam_pipelines.images.images import CheckedImage, StoredImage, check_image, check_pixels
from beam_pipelines.images.raw_image import layout_of
from beam_pipelines.images.arrays import NPY_MAGIC, npy_image
from tf_input.dataset_format import IMAGE, Feature
from tf_input.serialized_example import BadExampleError, SerializedExample


class Image(FeatureKind):
    """The feature kind `image`."""

    task = "image-to-image"

    def encoder(self, feature: Feature, options: EncoderOptions) -> Encoder:
        """Returns the encoder of an additional image. `shards` encodes the image `image`."""
        name = feature.name

        def encode(part: FilePart | ArrayPart, example: EncodedExample) -> bytes:
            data = example.read(part)
            checked = _check(part, data, example.options)
            stored = data if checked is None or checked.encoded is None else checked.encoded
            image = StoredImage(len(stored)) if checked is None else checked.describe(len(stored))
            example.stored |= {f"{name}/height": image.height, f"{name}/width": image.width}
            example.images[name], example.paths[name] = image, part.path
            return stored

        return encode

    def check(self, feature: Feature, example: SerializedExample, decodes: bool, is_sampled: bool) -> CheckedImage | None:
        """Checks an image and compares its height and width with the record. If `prepare` did not check the image, the
        size in the record is 0 or missing."""
        prefix = "" if feature.name == IMAGE else f"{feature.name}/"
        size = tuple(value for side in ("height", "width") for value in _integers(example, f"{prefix}{side}"))
        if not decodes and not any(size):
            return None
        data = example.values(feature.name)[0]
        if (image_format := identify(data)) in NEVER_STORED:
            raise BadExampleError(f"an image in the format {image_format}, which TensorFlow does not decode")
        images = ImageConfig(format="webp") if image_format == "webp" else ImageConfig()
        full_scale = is_sampled and decodes and feature.name == IMAGE
        checked = check_image(data, "strict" if decodes else "header", full_scale=full_scale, images=images)
        if any(size) and size != (checked.height, checked.width):
            stated = " x ".join(map(str, size))
            raise BadExampleError(f"an image of {checked.height} x {checked.width} pixels; the record has {stated}")
        return checked

    def recount(
        self, feature: Feature, example: SerializedExample, decoded: Any, split: SplitStatistics, statistics: ImageStatistics, is_sampled: bool
    ) -> None:
        image = image_facts(feature, example, decoded)
        side = f"{feature.name}/height"  # missing or 0 if `prepare` did not check the image
        is_checked = side in example.features and any(example.values(side))
        statistics.images_of(feature.name).add([image if is_checked else StoredImage(image.num_bytes)])

    def describe_tfds(self, feature: Feature, images: StoredImages) -> dict[str, Any]:
        image = {"shape": {"dimensions": ["-1", "-1", str(images.channels)]}, "dtype": feature.value_dtype}
        return {"pythonClassName": f"{TFDS}.image_feature.Image", "image": image}


def image_facts(feature: Feature, example: SerializedExample, checked: CheckedImage | None) -> StoredImage:
    """Returns the properties of a stored image, which can be a file, pixels or a tensor."""
    num_bytes = len(image_data(feature, example))
    if checked is not None:
        # `prepare` counts the channels before encoding, but a decoded WebP is never gray.
        num_channels = 0 if checked.format == "webp" else checked.num_channels
        return StoredImage(num_bytes, checked.format, "", checked.height, checked.width, num_channels)
    if feature.is_file:
        return StoredImage(num_bytes)
    height, width, num_channels = example.values(f"{feature.name}/shape") if feature.shape.count(None) > 1 else feature.shape
    if height is None:
        height = num_bytes // (width * num_channels * np.dtype(feature.dtype).itemsize)
    return StoredImage(num_bytes, "raw", "", height, width, num_channels if feature.is_image else 0)


def image_data(feature: Feature, example: SerializedExample) -> bytes:
    """Returns the bytes of an image or a tensor."""
    return example.values(feature.name if feature.name in example.features else f"{feature.name}/value")[0]


def _integers(example: SerializedExample, name: str) -> list[int]:
    return list(example.values(name)) if name in example.features and example.features[name].storage == "int64" else []


def _check(part: FilePart | ArrayPart, data: bytes, options: EncoderOptions) -> CheckedImage | None:
    """Checks an additional image. Returns None if checks are disabled.

    Images from arrays are always checked, because they must be converted to a stored format.
    """
    is_npy = isinstance(part, FilePart) and data.startswith(NPY_MAGIC)
    if isinstance(part, ArrayPart) or is_npy:
        raw, pixels = npy_image(data) if is_npy else (layout_of(part.shape, part.dtype), data)
        # Additional images that are stored as pixels always have three channels.
        return check_pixels(pixels, raw, options.images, is_file=is_npy or options.images.encoding == "raw")
    if options.check == "none":
        if not data:
            raise InvalidInput("unreadable", "the file is empty")
        check_storable(data)
        return None
    return check_image(data, options.check, images=options.images)
