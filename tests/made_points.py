"""Creates images with one colored square around each keypoint, so that tests can find the keypoints in decoded images."""

import pathlib
from typing import Mapping, Sequence

import numpy as np

from beam_pipelines.__main__ import main
from made_images import encode, exif, write_files

COLORS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))  # of the points, in order
RADIUS = 2


def draw_points(points: Sequence[tuple[float, float]], height: int, width: int) -> np.ndarray:
    """Returns a black image with a square of 4 x 4 pixels around each point, whose x and y are integers."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for (x, y), color in zip(points, COLORS):
        pixels[max(0, int(y) - RADIUS) : int(y) + RADIUS, max(0, int(x) - RADIUS) : int(x) + RADIUS] = color
    return pixels


def find_points(pixels: np.ndarray) -> list[tuple[float, float] | None]:
    """Returns the center of the square of each color, in pixels, or None if an image has no square of the color."""
    found: list[tuple[float, float] | None] = []
    for channel in range(len(COLORS)):
        weights = pixels[..., channel].astype(np.float64)
        rows, columns = (np.arange(side) + 0.5 for side in weights.shape)
        total = weights.sum()
        center = ((weights * columns).sum() / total, (weights.T * rows).sum() / total) if total > 255 else None
        found.append(center)
    return found


def write_points(
    root: pathlib.Path, points: Mapping[str, Sequence[tuple[float, float]]], height: int, width: int, orientation: int = 1
) -> pathlib.Path:
    """Writes a PNG for each key of `points`, and returns `root`."""
    options = {"exif": exif(orientation)} if orientation != 1 else {}
    return write_files(root, {name: encode(draw_points(some, height, width), "PNG", **options) for name, some in points.items()})


def prepare_table(root: pathlib.Path, table: str, *options: str, name: str = "rows.csv") -> int:
    """Writes a table into `root` and prepares it as `root/out`. Returns the exit code."""
    (root / name).write_text(table)
    command = ["prepare", "--input", str(root / name), "--output", str(root / "out"), "--splits", "train=1", "--overwrite", "--no_report"]
    return main([*command, *options])
