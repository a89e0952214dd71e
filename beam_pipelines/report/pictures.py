"""Thumbnails of examples, with their boxes and masks: JPEGs and PNGs as `data:` URIs, so that a page asks for nothing."""

import base64
import dataclasses
import io
import math
from typing import NamedTuple

import numpy as np

from beam_pipelines.errors import Refusal
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.raw_image import RawImage, layout_of
from beam_pipelines.images.thumbnails import SIDE, make_thumbnail
from beam_pipelines.report.colours import hue, rgb_of
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from tf_input.dataset_format import IMAGE, OBJECTS, Feature, Manifest

# In pixels. What is drawn on images needs room.
_SIDE_WITH_DRAWINGS = 2 * SIDE
_SHOWN_SIDE, _SHOWN_SIDE_WITH_DRAWINGS = 64, 128  # of a tiny one
_MAX_IMAGES = 3  # of an example
_MAX_BOXES = 40
_MAX_NAME = 60


class Box(NamedTuple):
    """An object in a picture: where it is, in pixels of the picture, and its class."""

    x: float
    y: float
    width: float
    height: float
    label: str
    hue: int


@dataclasses.dataclass(frozen=True)
class Picture:
    """One image of an example.

    Attributes:
        encoded: The bytes of a JPEG.
        height: The height of the picture, in pixels.
        width: The width of the picture, in pixels.
        boxes: The boxes that lie on the picture.
        mask: A `data:` URI of the mask that lies on the picture; empty where there is none.
        shown_side: The longest side to which a tiny picture is enlarged on the page, in its pixels.
    """

    encoded: bytes
    height: int
    width: int
    boxes: tuple[Box, ...] = ()
    mask: str = ""
    shown_side: int = _SHOWN_SIDE

    @property
    def source(self) -> str:
        """As a `data:` URI."""
        return _uri("jpeg", self.encoded)

    @property
    def shown_size(self) -> tuple[int, int]:
        """(width, height) on the page, in its pixels: tiny images are enlarged."""
        scale = max(1.0, self.shown_side / max(self.height, self.width))
        return max(1, round(scale * self.width)), max(1, round(scale * self.height))

    @property
    def is_enlarged(self) -> bool:
        """Whether its own pixels are to be seen."""
        return self.shown_size[0] >= 2 * self.width

    @property
    def num_bytes(self) -> int:
        """That it adds to the page, about."""
        return len(self.encoded) * 4 // 3 + len(self.mask) + 200 * len(self.boxes) + 300


class Pictures:
    """Makes the pictures of a data set.

    Args:
        manifest: The manifest of the data set.
    """

    def __init__(self, manifest: Manifest) -> None:
        features = manifest.features
        is_drawn = lambda one: one.kind in ("image", "pixels") or (one.name == IMAGE and one.kind == "tensor" and _layout(one))
        images = filter(is_drawn, manifest.schema)
        self._images = sorted(images, key=lambda one: one.name != IMAGE)[:_MAX_IMAGES]
        self._mask = next((one.name for one in manifest.schema if one.kind == "mask"), "")
        self._has_boxes = f"{OBJECTS}/bbox" in features
        label = features.get(f"{OBJECTS}/label")
        self._names = label.label_names if label else ()
        sides = (_SIDE_WITH_DRAWINGS, _SHOWN_SIDE_WITH_DRAWINGS) if self._mask or self._has_boxes else (SIDE, _SHOWN_SIDE)
        self._side, self._shown_side = sides

    @property
    def has_any(self) -> bool:
        """Whether examples have images that can be shown."""
        return bool(self._images)

    @property
    def has_light(self) -> bool:
        """Whether the first image of an example is as bright as it is stored: the numbers of a tensor are scaled."""
        return self.has_any and self._images[0].kind != "tensor"

    @property
    def has_boxes(self) -> bool:
        """Whether there are boxes to draw."""
        return self.has_any and self._has_boxes

    @property
    def has_masks(self) -> bool:
        """Whether there are masks to draw."""
        return self.has_any and bool(self._mask)

    def of(self, example: ExampleReader) -> list[Picture]:
        """The images of an example; of those that can't be decoded, as where nobody has looked into them, none."""
        found = []
        for feature in self._images:
            try:
                picture = self._thumbnail(feature, example)
                if feature.name == IMAGE:
                    picture = dataclasses.replace(picture, boxes=self._boxes(example, picture), mask=self._draw_mask(example, picture))
                found.append(picture)
            except (Refusal, BadExampleError, IndexError):
                continue
        return found

    def of_jpeg(self, encoded: bytes) -> list[Picture]:
        """A small JPEG that is no example's, as one picture; none if it is not one."""
        try:
            return [Picture(*make_thumbnail(encoded), shown_side=_SHOWN_SIDE)]
        except Refusal:
            return []

    def _thumbnail(self, feature: Feature, example: ExampleReader) -> Picture:
        data = example.values(feature.name)[0]
        raw = None if feature.kind == "image" else _layout(feature)
        if feature.kind == "tensor":
            data = _as_pixels(data, feature)
        return Picture(*make_thumbnail(data, raw, self._side), shown_side=self._shown_side)

    def _boxes(self, example: ExampleReader, picture: Picture) -> tuple[Box, ...]:
        if not self._has_boxes:
            return ()
        values = example.values(f"{OBJECTS}/bbox")[: 4 * _MAX_BOXES]
        labels = example.values(f"{OBJECTS}/label") if self._names else []
        boxes = []
        for index, (top, left, bottom, right) in enumerate(zip(*(values[side::4] for side in range(4)))):
            if all(map(math.isfinite, (top, left, bottom, right))) and 0 <= top <= bottom <= 1 and 0 <= left <= right <= 1:
                label = labels[index] if index < len(labels) else -1
                name = self._names[label][:_MAX_NAME] if 0 <= label < len(self._names) else ""
                place = (left * picture.width, top * picture.height, (right - left) * picture.width, (bottom - top) * picture.height)
                boxes.append(Box(*(round(side, 1) for side in place), name, hue(label)))
        return tuple(boxes)

    def _draw_mask(self, example: ExampleReader, picture: Picture) -> str:
        """Each class in its colour; class 0, mostly what is behind all else, is not coloured."""
        if not self._mask:
            return ""
        from PIL import Image  # few data sets have masks

        ids = read_mask(example.values(self._mask)[0])
        rows, columns = (np.arange(wanted) * have // wanted for have, wanted in zip(ids.shape, (picture.height, picture.width)))
        small = ids[rows][:, columns].astype(np.int64)
        small = np.where(small == 0, 0, 1 + (small - 1) % 255).astype(np.uint8)
        image = Image.fromarray(small, "P")
        image.putpalette(bytes(value for colour in range(256) for value in rgb_of(colour - 1)))
        encoded = io.BytesIO()
        image.save(encoded, "PNG", transparency=0, optimize=False)
        return _uri("png", encoded.getvalue())


def _layout(feature: Feature) -> RawImage | None:
    """How the numbers of a feature lie, once each is a byte; None where they are no image."""
    raw = None if None in feature.shape else layout_of(feature.shape, "|u1")
    return None if raw is None or raw.is_tensor else raw


def _as_pixels(data: bytes, feature: Feature) -> bytes:
    """Numbers of any type as uint8, the smallest as 0 and the largest as 255."""
    values = np.frombuffer(data, np.dtype(feature.dtype).newbyteorder("<")).astype(np.float64)
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 1.0)
    with np.errstate(all="ignore"):
        scaled = np.where(finite, (values - low) / ((high - low) or 1.0), 0.0)
    return np.nan_to_num(255 * scaled).clip(0, 255).astype(np.uint8).tobytes()


def _uri(image_format: str, data: bytes) -> str:
    return f"data:image/{image_format};base64,{base64.b64encode(data).decode()}"
