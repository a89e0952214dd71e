"""Feature kind `keypoints`: x, y and optionally visibility of points, float32 [num_points, 2 or 3].

x and y are fractions of the width and height of the image. They follow crops, flips, padding and resizing. A point
outside the crop gets x, y and visibility 0. If the points of a feature have no visibility, points outside the crop keep
their position, so their x or y is outside 0..1.

A horizontal flip swaps left and right points, such as `left_eye` and `right_eye`. The pairs come from the option
`Augmentation.flip_pairs`, or from the names of the points.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Mapping, Sequence

import numpy as np

from tf_input.dataset_format import IMAGE, Feature
from tf_input.features.crop_geometry import CropGeometry
from tf_input.features.feature_kind import BatchContext, FeatureKind
from tf_input.lazy_tensorflow import tf
from tf_input.read_config import ReadConfig

_SIDE = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])", re.IGNORECASE)
_OPPOSITE = {"left": "right", "right": "left", "l": "r", "r": "l"}
_RADIUS, _LINE = 1 / 120, 1 / 240  # of the longer side of a drawing


class Keypoints(FeatureKind):
    """The feature kind `keypoints`."""

    def check_options(self, config: ReadConfig, features: Mapping[str, Feature]) -> None:
        given = config.augmentation and config.augmentation.flip_pairs
        if given is None:
            return
        if not features:
            raise ValueError(f"flip_pairs={given!r}: neither inputs nor targets include keypoints. Omit it.")
        if isinstance(given, Mapping) and (unknown := [name for name in given if name not in features]):
            raise ValueError(f"flip_pairs: {unknown[0]!r} is not one of the keypoints that are read: {', '.join(features)}.")
        if given and not isinstance(given, Mapping) and len(features) > 1:
            raise ValueError(f"flip_pairs={given!r}: several features have keypoints. Pass {{NAME: pairs}}, with the names {', '.join(features)}.")
        for name, feature in features.items():
            num_points = feature.shape[-2]
            if outside := [pair for pair in config.augmentation.flip_pairs_of(name) or () if max(pair) >= num_points]:
                raise ValueError(f"flip_pairs: {outside[0]} is not a pair of points of {name!r}, which has the points 0 to {num_points - 1}.")

    def output(self, feature: Feature, batch: BatchContext) -> tf.Tensor:
        value, crops = batch.parsed[feature.name], batch.crops.get(IMAGE)
        return value if crops is None else self.move(value, crops, feature, batch.decoder.config)

    def move(
        self, values: tf.Tensor, crops: CropGeometry, feature: Feature, config: ReadConfig, images: tf.Tensor | None = None
    ) -> tf.Tensor:
        canvases, flipped = crops.canvas_boxes(), crops.flipped
        if images is not None:
            canvases = tf.gather(canvases, images)
            flipped = None if flipped is None else tf.gather(flipped, images)
        starts, ends = (edges[:, tf.newaxis, ::-1] for edges in tf.split(canvases, 2, axis=1))  # [n, 1, (x, y)]
        points = tf.concat([(values[..., :2] - starts) / (ends - starts), values[..., 2:]], axis=-1)
        if flipped is not None:
            mirrored = tf.concat([1 - points[..., :1], points[..., 1:]], axis=-1)
            mirrored = tf.gather(mirrored, _exchanged(feature.shape[-2], flip_pairs(feature, config)), axis=-2)
            points = tf.where(flipped[:, tf.newaxis, tf.newaxis], mirrored, points)
        if feature.shape[-1] == 2:
            return points
        is_seen = tf.reduce_all((points[..., :2] >= 0) & (points[..., :2] <= 1), axis=-1, keepdims=True) & (points[..., 2:] > 0)
        return tf.where(is_seen, points, 0.0)

    def move_array(
        self, values: np.ndarray, canvas_box: np.ndarray, is_flipped: bool, feature: Feature, config: ReadConfig
    ) -> np.ndarray:
        starts, ends = canvas_box[1::-1], canvas_box[:1:-1]  # (x, y)
        points = np.concatenate([(values[..., :2] - starts) / (ends - starts), values[..., 2:]], axis=-1)
        if is_flipped:
            points[..., 0] = 1 - points[..., 0]
            points = points[..., _exchanged(feature.shape[-2], flip_pairs(feature, config)), :]
        if feature.shape[-1] == 2:
            return points
        is_seen = _is_labeled(points) & ((points[..., :2] >= 0) & (points[..., :2] <= 1)).all(axis=-1)
        return np.where(is_seen[..., np.newaxis], points, np.float32(0))

    def describe_flips(self, feature: Feature, config: ReadConfig) -> str:
        if config.augmentation.flip_pairs_of(feature.name) is not None or feature.shape[-2] == 1:
            return ""
        advice = "Pass Augmentation(flip_pairs=[(index, index), ...]), flip_pairs=[] if no point is left or right, or flip=False."
        if not feature.point_names:
            return f"{feature.name!r} has no names of points, so a flip of the image does not exchange left and right points. {advice}"
        paired = {index for pair in flip_pairs(feature, config) for index in pair}
        unpaired = [name for index, name in enumerate(feature.point_names) if index not in paired and _SIDE.search(name)]
        if not unpaired:
            return ""
        return f"{feature.name!r}: the point {unpaired[0]!r} has no point on the other side, so a flip of the image does not exchange it. {advice}"

    def draw(self, draw: Any, sides: np.ndarray, feature: Feature, values: np.ndarray, colors: Collection[str]) -> None:
        radius, line = max(2, round(max(sides) * _RADIUS)), max(1, round(max(sides) * _LINE))
        for index, points in enumerate(np.asarray(values, np.float64).reshape(-1, *feature.shape[-2:])):
            color = colors[index % len(colors)]
            is_labeled = _is_labeled(points) & (points[:, :2] >= 0).all(axis=1) & (points[:, :2] <= 1).all(axis=1)
            corners = (points[:, :2] * (sides[::-1] - 1)).tolist()
            for start, end in feature.skeleton:
                if is_labeled[start] and is_labeled[end]:
                    draw.line((*corners[start], *corners[end]), fill=color, width=line)
            for position in np.flatnonzero(is_labeled).tolist():
                x, y = corners[position]
                is_hidden = points.shape[1] == 3 and points[position, 2] < 2
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), None if is_hidden else color, color, line)


def flip_pairs(feature: Feature, config: ReadConfig) -> Sequence[tuple[int, int]]:
    """Returns the pairs of points that a horizontal flip swaps: the option `flip_pairs`, or the default
    `pairs_of_names`."""
    given = config.augmentation.flip_pairs_of(feature.name)
    return pairs_of_names(feature.point_names) if given is None else given


def pairs_of_names(names: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the index pairs of names that differ only in left and right, such as `left_eye` and `right_eye`."""
    indices = {name.lower(): index for index, name in enumerate(names)}
    mirrored = (indices.get(_SIDE.sub(lambda match: _OPPOSITE[match[0].lower()], name).lower()) for name in names)
    return [(index, other) for index, other in enumerate(mirrored) if other is not None and index < other]


def _exchanged(num_points: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Returns, for each point of a flipped image, its index in the original image."""
    order = list(range(num_points))
    for first, second in pairs:
        order[first], order[second] = second, first
    return order


def _is_labeled(points: np.ndarray) -> np.ndarray:
    """Returns whether each point is labeled, bool [..., num_points]. A labeled point has a visibility above 0 or, if
    points have no visibility, x and y in 0..1."""
    if points.shape[-1] == 3:
        return points[..., 2] > 0
    return ((points >= 0) & (points <= 1)).all(axis=-1)
