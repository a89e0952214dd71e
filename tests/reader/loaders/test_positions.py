"""Tests that boxes and keypoints of a loader follow the crops and flips of their image."""

import json

import numpy as np
import pytest
from PIL import Image

import tf_input
from beam_pipelines.__main__ import main

SIZE, NUM_IMAGES, SIDE = (40, 60), 8, 16


@pytest.fixture(scope="module")
def squares(tmp_path_factory) -> tf_input.PreparedDataset:
    """Black images, each with a red and a green square, their boxes, and keypoints in the centers of the squares."""
    folder = tmp_path_factory.mktemp("squares")
    images, annotations, rng = [], [], np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        height, width = (int(side) for side in rng.integers(90, 130, 2))
        pixels = np.zeros((height, width, 3), np.uint8)
        corners = [(int(rng.integers(half, half + width // 2 - SIDE)), int(rng.integers(height - SIDE))) for half in (0, width // 2)]
        points = [value for x, y in corners for value in (x + SIDE / 2, y + SIDE / 2, 2)]
        for channel, (x, y) in enumerate(corners):
            pixels[y : y + SIDE, x : x + SIDE, channel] = 255
            annotation = {"image_id": number, "category_id": channel + 1, "bbox": [x, y, SIDE, SIDE], "keypoints": points, "num_keypoints": 2}
            annotations.append({**annotation, "id": len(annotations), "area": SIDE**2, "iscrowd": 0})
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
    categories = [{"id": index + 1, "name": name, "keypoints": ["left_top", "right_top"]} for index, name in enumerate(("red", "green"))]
    (folder / "annotations.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    output = tmp_path_factory.mktemp("out") / "squares"
    options = [f"--image_root={folder}", "--splits=train=1", "--num_shards=1", "--quiet"]
    assert main(["prepare", f"--input={folder}/annotations.json", f"--output={output}", *options]) == 0
    return tf_input.open(output)


def visible_box(pixels: np.ndarray) -> np.ndarray:
    rows, columns = (np.flatnonzero((pixels > 127).any(axis=axis)) for axis in (1, 0))
    return np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1])


def test_boxes_and_keypoints_follow_crops_and_flips(squares):
    loader = squares.loader("train", batch_size=4, image_size=SIZE, augment=tf_input.Augmentation(flip_pairs=[]), seed=0)
    num_boxes = 0
    for batch in (batch for _ in range(6) for batch in loader):
        objects = batch["objects"]
        for image, boxes, labels, points in zip(batch["image"], objects["bbox"], objects["label"], objects["keypoints"], strict=True):
            assert len(boxes) == len(labels) == len(points)
            for box, label, (x, y, _) in zip(boxes * np.tile(SIZE, 2), labels, points[np.arange(len(labels)), labels], strict=True):
                num_boxes += 1
                np.testing.assert_allclose(visible_box(image[..., label]), box, atol=1.6)
                assert box[1] / SIZE[1] <= x <= box[3] / SIZE[1] and box[0] / SIZE[0] <= y <= box[2] / SIZE[0]
    assert num_boxes > NUM_IMAGES * 4, "most squares are visible"


@pytest.mark.parametrize(("fit", "image_size"), [("crop", (64, 32)), (None, (120, 100)), ("unscaled", (200, 91)), ("stretch", (20, 90))])
def test_images_and_boxes_are_fitted_as_in_batches(squares, fit, image_size):
    options = {"batch_size": 4, "image_size": image_size, "fit": fit, "shuffle": False}
    expected = squares.batches("train", **options, inputs=("image",), targets=("objects",)).as_numpy_iterator()
    for batch, (images, objects) in zip(squares.loader("train", **options), expected, strict=True):
        assert np.abs(batch["image"].astype(int) - images.astype(int)).mean() < 2, "only the interpolation differs"
        for name in ("bbox", "label", "keypoints"):
            for own, padded, valid in zip(batch["objects"][name], objects[name], objects["valid"], strict=True):
                np.testing.assert_allclose(own, padded[valid], atol=1e-6, err_msg=name)


def test_flips_exchange_left_and_right_keypoints(squares, caplog):
    options = {"batch_size": NUM_IMAGES, "image_size": (120, 120), "seed": 0, "fit": "stretch"}
    for flip_pairs in (None, []):
        augmentation = tf_input.Augmentation(crop=False, flip_pairs=flip_pairs)
        (batch,) = squares.loader("train", **options, augment=augmentation)
        is_right = [points[0, 0, 0] > points[0, 1, 0] for points in batch["objects"]["keypoints"]]
        assert any(is_right) == (flip_pairs == []), "with pairs, point 0 is always the left one"


def test_warns_if_flips_do_not_exchange_unnamed_points(tmp_path, caplog):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "points.csv").write_text("filename,x1,y1,x2,y2\na.png,1,1,5,5\n")
    options = [f"--input={tmp_path}/points.csv", "--label=x1,y1,x2,y2:keypoints", "--splits=train=1", f"--output={tmp_path}/out"]
    assert main(["prepare", *options, "--quiet"]) == 0
    tf_input.open(tmp_path / "out").loader("train", batch_size=1, image_size=8, augment=True)
    assert "flip_pairs" in caplog.text
