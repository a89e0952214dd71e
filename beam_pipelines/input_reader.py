"""Makes of one input an image that is fit to be stored, with all that belongs to it, or a dead letter. Plain."""

import dataclasses
import functools
from fractions import Fraction
from typing import Mapping, NamedTuple

import google_crc32c
import numpy as np

from beam_pipelines.annotations import BadAnnotationError
from beam_pipelines.image_config import ImageConfig
from beam_pipelines.dead_letters import DeadLetter
from beam_pipelines.errors import RunError, printable
from beam_pipelines.extras import Extras, ExtrasEncoder
from beam_pipelines.files import MAX_FILE_BYTES, Files
from beam_pipelines.images import BadImageError, CheckedImage, check_image, check_pixels
from beam_pipelines.input_errors import describe_fact
from beam_pipelines.references import WHOLE_FILE, LabeledImage
from beam_pipelines.spool import SpoolReader
from beam_pipelines.statistics import NUM_PIXEL_SAMPLES, PixelSums
from tf_input.dataset_format import IMAGE, LABEL, Feature

# Reading a tiny file a second time, to write it, costs more than keeping its bytes; of a larger one, less.
SPOOL_BELOW_BYTES = 16 << 10


@dataclasses.dataclass(frozen=True)
class ReadContext:
    """What every batch of a run shares.

    Attributes:
        root: The source's root.
        check: One of `config.CHECKS`.
        seed: Of the global shuffle.
        splits: Split names; a reference holds a position in them.
        fractions: Their shares, where a group decides; None where the source does.
        schema: Of the data set; a reference holds a position in the class names of `label`.
        num_inputs: Of the whole run.
        spool_directory: Where bytes go that are not read from the source again.
        spools_all: The images of a batch come in the order in which they will be written, and so they are all spooled.
        images: How images are stored.
        bad_boxes: One of `config.BAD_BOXES`.
    """

    root: str
    check: str
    seed: int
    splits: tuple[str, ...]
    fractions: Mapping[str, Fraction] | None
    schema: tuple[Feature, ...]
    num_inputs: int
    spool_directory: str
    spools_all: bool = False
    images: ImageConfig = ImageConfig()
    bad_boxes: str = "refuse"

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        return {feature.name: feature for feature in self.schema}

    @functools.cached_property
    def labels(self) -> dict[str, int]:
        """Class name of `label` -> its position; an image without that feature has the name "" and the position 0."""
        feature = self.features.get(LABEL)
        names = feature.label_names if feature and feature.kind == "class_label" and not feature.shape else ("",)
        return {name: position for position, name in enumerate(names)}

    @functools.cached_property
    def has_labels(self) -> bool:
        return "" not in self.labels

    @functools.cached_property
    def pixel_bytes(self) -> int | None:
        """Of each image, where they are stored without a format."""
        feature = self.features[IMAGE]
        return int(np.prod(feature.shape)) if feature.kind == "pixels" else None

    @functools.cached_property
    def extras(self) -> ExtrasEncoder:
        return ExtrasEncoder(self.schema, self.root, self.bad_boxes)

    @functools.cached_property
    def sample_below(self) -> int:
        """Images with a smaller order lend their pixels to the statistics: a sample, and always the same one."""
        return min(2**64 - 1, NUM_PIXEL_SAMPLES * 2**64 // max(self.num_inputs, 1))


class ReadImage(NamedTuple):
    """One image that is fit: its bytes where they are to be spooled, what the statistics want, then columns of its row."""

    data: bytes | None
    extras: Extras | None
    format: str
    reencoded: str
    pixels: PixelSums | None
    num_bytes: int
    crc32c: int
    height: int
    width: int


class InputReader:
    """Makes of one input an image that is fit, or a dead letter."""

    def __init__(self, context: ReadContext, files: Files, spool: SpoolReader) -> None:
        self._context = context
        self._files = files
        self._spool = spool

    def read(self, image: LabeledImage, is_sampled: bool) -> ReadImage | DeadLetter:
        context = self._context
        try:
            data = self._read_bytes(image)
            if context.check == "none":
                if not data:
                    return _dead_letter(image, "read", "unreadable", _EMPTY)
                return ReadImage(data, self._encode_extras(image, None), "", "", None, len(data), 0, 0, 0)
            checked = self._check(image, data, is_sampled)
            extras = self._encode_extras(image, checked)
        except OSError as error:
            return self._refuse(image, error)
        except _CutOffError as error:
            return _dead_letter(image, "read", "unreadable", str(error))
        except BadImageError as error:
            return _dead_letter(image, "check", "bad_image", str(error))
        except BadAnnotationError as error:
            return _dead_letter(image, "check", error.reason, str(error))
        is_spooled = context.spools_all or checked.encoded is not None or (len(data) < SPOOL_BELOW_BYTES and not image.spool)
        data = data if checked.encoded is None else checked.encoded
        return ReadImage(
            data if is_spooled else None,
            extras,
            checked.format,
            checked.reencoded,
            # Summed here and now: the pixels of a batch of photographs would be gigabytes.
            None if checked.pixels is None else PixelSums.of(checked.pixels),
            len(data),
            google_crc32c.value(data),
            checked.height,
            checked.width,
        )

    def stat(self, image: LabeledImage) -> ReadImage | DeadLetter:
        """Without a check nothing is known of an image but its size."""
        try:
            size = image.num_bytes or self._files.size(f"{self._context.root}/{image.path}")
            extras = self._encode_extras(image, None)
        except OSError as error:
            return self._refuse(image, error)
        except BadAnnotationError as error:
            return _dead_letter(image, "check", error.reason, str(error))
        if not 0 < size <= MAX_FILE_BYTES:
            message = f"{size} bytes; expected at most {MAX_FILE_BYTES}" if size else _EMPTY
            return _dead_letter(image, "read", "unreadable", message)
        return ReadImage(None, extras, "", "", None, size, 0, 0, 0)

    def _read_bytes(self, image: LabeledImage) -> bytes:
        if image.spool:
            return self._read_spool(image)
        path = f"{self._context.root}/{image.path}"
        if image.offset == WHOLE_FILE:
            return self._files.read(path)
        data = self._files.read_range(path, image.offset, image.num_bytes)
        if len(data) != image.num_bytes:
            raise _CutOffError(f"{len(data)} bytes at {image.offset}; expected {image.num_bytes}")
        return data

    def _read_spool(self, image: LabeledImage) -> bytes:
        """What we wrote ourselves: that it is not there says nothing about the image."""
        try:
            data = self._spool.read(image.spool, image.offset, image.num_bytes)
        except OSError as error:
            raise RunError(f"{printable(image.path)}: the spool could not be read: {error.strerror or error}") from error
        if len(data) != image.num_bytes:
            raise RunError(f"{printable(image.path)}: the spool has {len(data)} bytes at {image.offset}; expected {image.num_bytes}")
        return data

    def _refuse(self, image: LabeledImage, error: OSError) -> DeadLetter:
        """RunError where the error says nothing about the image, or a file that belongs to it."""
        path = error.filename if isinstance(error.filename, str) else f"{self._context.root}/{image.path}"
        return _dead_letter(image, "read", "unreadable", describe_fact(error, path))

    def _check(self, image: LabeledImage, data: bytes, is_sampled: bool) -> CheckedImage:
        context = self._context
        if image.raw is not None:
            checked = check_pixels(data, image.raw, context.images, full_scale=is_sampled)
        else:
            checked = check_image(data, context.check, full_scale=is_sampled, images=context.images)
        if context.pixel_bytes is not None:
            num_bytes = len(data if checked.encoded is None else checked.encoded)
            if num_bytes != context.pixel_bytes:
                raise BadImageError(f"{num_bytes} bytes of pixels; expected {context.pixel_bytes}, as all images have")
        return checked

    def _encode_extras(self, image: LabeledImage, checked: CheckedImage | None) -> Extras | None:
        if not self._context.extras.features:
            return None
        return self._context.extras.encode(image.values or {}, checked and checked.geometry, self._files, self._spool)


class _CutOffError(ValueError):
    """A file ends before the part of it that an image is."""


_EMPTY = "the file is empty"


def _dead_letter(image: LabeledImage, stage: str, reason: str, message: str) -> DeadLetter:
    """Named by its file, or where that has many images by its key too."""
    is_file = image.offset == WHOLE_FILE and not image.spool
    name = image.path if is_file else image.key if image.key.startswith(image.path) else f"{image.path}/{image.key}"
    return DeadLetter(name, stage, reason, message)
