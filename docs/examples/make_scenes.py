"""Writes small pictures of handwritten digits with boxes and masks, to try a detector and a U-Net without a download.

    python docs/examples/make_scenes.py scenes

The command writes scenes/images/NNNN.png, scenes/masks/NNNN.png (1 for digits, 0 for background) and
scenes/annotations/instances.json with boxes in COCO format. The digits are scikit-learn's scans.
"""

import argparse
import json
import pathlib

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIDE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes pictures of digits with boxes and masks.")
    parser.add_argument("output", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--num_images", type=int, default=1000, metavar="N", help="(default: 1000)")
    arguments = parser.parse_args()
    write_scenes(arguments.output, arguments.num_images)
    print(f"{arguments.num_images:,} pictures of digits, with their boxes and masks, are in {arguments.output}")


def write_scenes(folder: pathlib.Path, num_images: int) -> None:
    """Writes `num_images` pictures. The result is deterministic."""
    random, digits = np.random.default_rng(0), load_digits()
    images, annotations = [], []
    for name in ("images", "masks", "annotations"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(num_images):
        picture, mask, boxes = draw_scene(random, digits.images, digits.target)
        file_name = f"{index:04d}.png"
        Image.fromarray(picture).save(folder / "images" / file_name)
        Image.fromarray(mask).save(folder / "masks" / file_name)
        images.append({"id": index, "file_name": file_name, "height": SIDE, "width": SIDE})
        for digit, left, top, side in boxes:
            box = {"id": len(annotations) + 1, "image_id": index, "category_id": digit + 1, "bbox": [left, top, side, side]}
            annotations.append({**box, "area": side * side, "iscrowd": 0})
    categories = [{"id": digit + 1, "name": str(digit)} for digit in range(10)]
    coco = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations" / "instances.json").write_text(json.dumps(coco))


def draw_scene(
    random: np.random.Generator, scans: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, int, int]]]:
    """Draws one to four digits that do not touch each other, on a dark background.

    Args:
        random: The random generator.
        scans: The scans of digits, float [num_scans, 8, 8], 0 to 16.
        labels: The digit of each scan.

    Returns:
        The picture, uint8 [64, 64, 3]; its mask, uint8 [64, 64]; and (digit, left, top, side) for each digit.
    """
    picture = random.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    boxes: list[tuple[int, int, int, int]] = []
    for number in random.choice(len(scans), random.integers(1, 5)):
        side = int(random.integers(16, 25))
        left, top = (int(location) for location in random.integers(0, SIDE - side, 2))
        if any(abs(left - x) < max(side, other) and abs(top - y) < max(side, other) for _, x, y, other in boxes):
            continue
        scan = np.asarray(Image.fromarray((scans[number] * 15).astype(np.uint8)).resize((side, side), Image.Resampling.BILINEAR))
        ink = scan > 80
        view = (slice(top, top + side), slice(left, left + side))
        picture[view][ink] = (scan[ink][:, None] * random.uniform(0.5, 1, 3)).astype(np.uint8)
        mask[view][ink] = 1
        boxes.append((int(labels[number]), left, top, side))
    return picture, mask, boxes


if __name__ == "__main__":
    main()
