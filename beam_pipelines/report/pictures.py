"""Makes thumbnails of examples with boxes and masks, as `data:` URIs for the report."""

import base64
import dataclasses
import io
import math
from typing import Iterator, NamedTuple

import numpy as np

from beam_pipelines.errors import InvalidInput
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.images.class_masks import read_mask
from beam_pipelines.images.raw_image import RawImage, layout_of
from beam_pipelines.images.thumbnails import SIDE, make_thumbnail
from beam_pipelines.report.colours import hue, rgb_of
from tf_input.dataset_format import IMAGE, OBJECTS, Feature, Manifest
from tf_input.serialized_example import BadExampleError, SerializedExample

# In pixels. Images with boxes or masks are larger.
_SIDE_WITH_DRAWINGS = 2 * SIDE
_SHOWN_SIDE, _SHOWN_SIDE_WITH_DRAWINGS = 64, 128  # Displayed size of tiny images.
_MAX_IMAGES = 3  # Maximum number of images to show for each example.
_MAX_BOXES = 40
_MAX_MARKS = 400
_MAX_NAME = 60


class Box(NamedTuple):
    """An object in a picture, with its box in picture pixels, its class and its color."""

    x: float
    y: float
    width: float
    height: float
    label: str
    hue: int


class ShownMark(NamedTuple):
    """A point or a line in a picture, in pixels of the picture. For a point, both ends are equal."""

    x: float
    y: float
    end_x: float
    end_y: float
    label: str
    hue: int

    @property
    def is_point(self) -> bool:
        """Whether the mark is a point."""
        return (self.x, self.y) == (self.end_x, self.end_y)


@dataclasses.dataclass(frozen=True)
class Picture:
    """One image of an example.

    Attributes:
        encoded: The bytes of a JPEG.
        height: The height of the picture, in pixels.
        width: The width of the picture, in pixels.
        boxes: The boxes to draw on the picture.
        marks: The points and lines to draw on the picture.
        mask: The mask to draw on the picture, as a `data:` URI, or an empty string.
        shown_side: The longest side at which a tiny picture is displayed, in page pixels.
    """

    encoded: bytes
    height: int
    width: int
    boxes: tuple[Box, ...] = ()
    marks: tuple[ShownMark, ...] = ()
    mask: str = ""
    shown_side: int = _SHOWN_SIDE

    @property
    def source(self) -> str:
        """The picture as a `data:` URI."""
        return _uri("jpeg", self.encoded)

    @property
    def shown_size(self) -> tuple[int, int]:
        """The width and height at which the picture is displayed, in page pixels. Tiny pictures are enlarged."""
        scale = max(1.0, self.shown_side / max(self.height, self.width))
        return max(1, round(scale * self.width)), max(1, round(scale * self.height))

    @property
    def is_enlarged(self) -> bool:
        """Whether the picture is enlarged by a factor of at least 2."""
        return self.shown_size[0] >= 2 * self.width

    @property
    def num_bytes(self) -> int:
        """The approximate size that the picture adds to the page, in bytes."""
        return len(self.encoded) * 4 // 3 + len(self.mask) + 200 * (len(self.boxes) + len(self.marks)) + 300


class Pictures:
    """Converts the examples of a dataset to pictures.

    Args:
        manifest: The manifest of the dataset.

    Attributes:
        has_any: Whether the examples have images that can be displayed.
        has_brightness: Whether thumbnails are as bright as the stored images. Tensors are rescaled for display.
        has_boxes: Whether pictures have boxes.
        has_masks: Whether pictures have masks.
        marks_noun: The plural noun for the marks in the pictures, such as `keypoints`; empty if there are no marks.
    """

    def __init__(self, manifest: Manifest) -> None:
        features = manifest.features
        is_drawn = lambda element: element.is_image or (element.name == IMAGE and element.is_tensor and _layout(element))
        images = filter(is_drawn, manifest.schema)
        self._images = sorted(images, key=lambda item: item.name != IMAGE)[:_MAX_IMAGES]
        self._mask = next((entry.name for entry in manifest.schema if entry.is_mask), "")
        self._has_boxes = f"{OBJECTS}/bbox" in features
        self._positions = [entry for entry in manifest.schema if kind_of(entry).noun]
        label = features.get(f"{OBJECTS}/label")
        self._names = label.label_names if label else ()
        sides = (_SIDE_WITH_DRAWINGS, _SHOWN_SIDE_WITH_DRAWINGS) if self._mask or self._has_boxes or self._positions else (SIDE, _SHOWN_SIDE)
        self._side, self._shown_side = sides
        self.has_any = bool(self._images)
        self.has_brightness = self.has_any and not self._images[0].is_tensor
        self.has_boxes, self.has_masks = self.has_any and self._has_boxes, self.has_any and bool(self._mask)
        self.marks_noun = ", ".join(sorted({kind_of(feature).noun for feature in self._positions})) if self.has_any else ""

    def of(self, example: SerializedExample) -> list[Picture]:
        """Returns the pictures of an example. Images that cannot be decoded are omitted."""
        pictures = []
        for feature in self._images:
            try:
                picture = self._thumbnail(feature, example)
                if feature.name == IMAGE:
                    picture = dataclasses.replace(picture, boxes=self._boxes(example, picture), mask=self._draw_mask(example, picture))
                    picture = dataclasses.replace(picture, marks=tuple(self._marks(example, picture)))
                pictures.append(picture)
            except (InvalidInput, BadExampleError, IndexError):
                continue
        return pictures

    def of_jpeg(self, encoded: bytes) -> list[Picture]:
        """Returns a list with one picture, made from a small JPEG. The list is empty if the bytes are invalid."""
        try:
            return [Picture(*make_thumbnail(encoded), shown_side=_SHOWN_SIDE)]
        except InvalidInput:
            return []

    def _thumbnail(self, feature: Feature, example: SerializedExample) -> Picture:
        data = example.values(feature.name)[0]
        raw = None if feature.is_file else _layout(feature)
        if feature.is_tensor:
            data = _as_pixels(data, feature)
        return Picture(*make_thumbnail(data, raw, self._side), shown_side=self._shown_side)

    def _boxes(self, example: SerializedExample, picture: Picture) -> tuple[Box, ...]:
        if not self._has_boxes:
            return ()
        values = example.values(f"{OBJECTS}/bbox")[: 4 * _MAX_BOXES]
        labels = example.values(f"{OBJECTS}/label") if self._names else []
        boxes = []
        for index, (top, left, bottom, right) in enumerate(zip(*(values[side::4] for side in range(4)))):
            if all(map(math.isfinite, (top, left, bottom, right))) and 0 <= top <= bottom <= 1 and 0 <= left <= right <= 1:
                label = labels[index] if index < len(labels) else -1
                name = self._names[label][:_MAX_NAME] if 0 <= label < len(self._names) else ""
                pixel_box = (left * picture.width, top * picture.height, (right - left) * picture.width, (bottom - top) * picture.height)
                boxes.append(Box(*(round(side, 1) for side in pixel_box), name, hue(label)))
        return tuple(boxes)

    def _marks(self, example: SerializedExample, picture: Picture) -> Iterator[ShownMark]:
        """Yields the points and lines to draw on a picture."""
        for feature in self._positions:
            numbers = np.array(example.values(feature.name), np.float64)
            for mark in kind_of(feature).marks(feature, numbers, _MAX_MARKS):
                ends = (mark.x * picture.width, mark.y * picture.height, mark.end_x * picture.width, mark.end_y * picture.height)
                yield ShownMark(*(round(end, 1) for end in ends), mark.name[:_MAX_NAME], hue(mark.color_index))

    def _draw_mask(self, example: SerializedExample, picture: Picture) -> str:
        """Draws each class of the mask in its color. Class 0, usually the background, is transparent."""
        if not self._mask:
            return ""
        from PIL import Image  # Imported here, because few datasets have masks.

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
    """Returns the layout of a feature's pixels, or None if the feature does not have the shape of an image."""
    raw = None if None in feature.shape else layout_of(feature.shape, "|u1")
    return None if raw is None or raw.is_tensor else raw


def _as_pixels(data: bytes, feature: Feature) -> bytes:
    """Scales numbers of any type to uint8, so that they range from 0 to 255."""
    values = np.frombuffer(data, np.dtype(feature.dtype).newbyteorder("<")).astype(np.float64)
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 1.0)
    with np.errstate(all="ignore"):
        scaled = np.where(finite, (values - low) / ((high - low) or 1.0), 0.0)
    return np.nan_to_num(255 * scaled).clip(0, 255).astype(np.uint8).tobytes()


def _uri(image_format: str, data: bytes) -> str:
    return f"data:image/{image_format};base64,{base64.b64encode(data).decode()}"
