"""Draws boxes, masks and keypoints on images, with one color per class."""

from typing import Any, Mapping, Sequence

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from tf_input.dataset_format import Feature
from tf_input.features.kinds import kind_of
from tf_input.overview import printable

_SHOWN_SIDE = 512  # images with a smaller side in pixels are enlarged, so that names are readable
_MAX_NAME = 60
_GOLDEN_ANGLE = 137.508  # gives neighboring classes different hues, for any number of classes


def draw_annotations(
    pixels: np.ndarray,
    masks: Sequence[np.ndarray],
    objects: Mapping[str, Any] | None,
    names: Sequence[str],
    positions: Sequence[tuple[Feature, np.ndarray]] = (),
) -> np.ndarray:
    """Draws boxes, masks and keypoints on an image.

    Args:
        pixels: The pixels of the image, uint8 [height, width, 3].
        masks: The masks, integers [height, width, 1]. Class 0, usually the background, is not colored.
        objects: The objects: `bbox`, float32 [num_objects, 4], ymin, xmin, ymax, xmax in 0..1, and optionally `label`,
            int64 [num_objects]. None draws no objects.
        names: The class names of the objects.
        positions: Features with positions, with their values.

    Returns:
        The image, uint8 [height', width', 3]. Small images are enlarged by an integer factor.
    """
    for mask in masks:
        pixels = _colour(pixels, mask[..., 0])
    factor = -(-_SHOWN_SIDE // max(pixels.shape[:2]))
    image = Image.fromarray(pixels)
    image = image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
    if objects:
        _draw_boxes(ImageDraw.Draw(image), np.array([image.height, image.width] * 2), objects, names)
    for feature, values in positions:
        kind_of(feature).draw(ImageDraw.Draw(image), np.array([image.height, image.width]), feature, values, _COLORS)
    return np.asarray(image)


def _colour(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    rows, columns = (
        np.arange(wanted) * have // wanted for have, wanted in zip(mask.shape, pixels.shape)
    )  # a mask may have another size after a transform
    classes, indices = np.unique(mask[rows][:, columns], return_inverse=True)
    colours = np.array([ImageColor.getrgb(_colour_of(item)) for item in classes.tolist()], np.uint16)
    mixed = (pixels + colours[indices.reshape(pixels.shape[:2])]) // 2
    return np.where((classes > 0)[indices].reshape(*pixels.shape[:2], 1), mixed, pixels).astype(np.uint8)


def _draw_boxes(draw: ImageDraw.ImageDraw, sides: np.ndarray, objects: Mapping[str, Any], names: Sequence[str]) -> None:
    """Draws the valid boxes. Invalid boxes are skipped, because records may contain arbitrary values."""
    boxes = np.asarray(objects["bbox"], np.float64)
    labels = objects.get("label", np.full(len(boxes), -1))
    size = max(sides) // 40
    font, line = ImageFont.load_default(size), max(2, size // 6)
    for box, label in zip(boxes, labels.tolist()):
        if not (np.isfinite(box).all() and (0 <= box).all() and (box[:2] <= box[2:]).all() and (box <= 1).all()):
            continue
        top, left, bottom, right = (box * (sides - 1)).round().tolist()
        colour = _colour_of(label)
        draw.rectangle((left, top, right, bottom), outline=colour, width=line)
        if 0 <= label < len(names):
            name = printable(names[label])[:_MAX_NAME]
            text_corner = left, max(0, top - size - line)  # above the box if there is space
            draw.rectangle(draw.textbbox(text_corner, name, font), fill=colour)
            draw.text(text_corner, name, "white", font)


def _colour_of(label: int) -> str:
    return f"hsl({label * _GOLDEN_ANGLE % 360:.0f},70%,45%)"


_COLORS = tuple(map(_colour_of, range(20)))  # of objects with positions, in order
