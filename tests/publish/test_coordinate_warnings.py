"""Tests the warnings about coordinate features that `prepare` does not transform together with their images."""

import json
import pathlib

import pytest

from beam_pipelines.__main__ import main
from made_images import encode, exif, noise, write_files

HEIGHT, WIDTH = 60, 100
FEATURES = {  # Name -> (kind, value, (warning expected when resized, warning expected when rotated by EXIF)).
    "landmarks": ("float[4]", [3.0, 4.0, 39.0, 20.0], (True, True)),
    "key_points": ("float[2]", [0.1, 0.9], (False, True)),  # Fractions do not change when the image is resized.
    "x1": ("float", 12.5, (True, True)),
    "leftEye_y": ("integer", 40, (True, True)),
    "polygon": ("float[]", [1.0, 2.0, 30.0, 20.0], (True, True)),
    "numbers": ("float[6]", [1.0, 10.0, 95.0, 22.0, 9.0, 40.0], (True, True)),  # Detected by the range of the values.
    "embedding": ("float[6]", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], (False, False)),
    "spectrum": ("float[6]", [1.0, 2000.0, 70.0, 3.0, 4.0, 5.0], (False, False)),
    "age": ("float", 33.0, (False, False)),
    "score": ("float", 80.0, (False, False)),
    "count": ("integer", 50, (False, False)),
}


def jpeg(seed: int, orientation: int = 1) -> bytes:
    return encode(noise(seed, HEIGHT, WIDTH), "JPEG", exif=exif(orientation))


def prepare_warnings(folder: pathlib.Path, *options: str, orientation: int = 1, values=None, features=FEATURES) -> list[str]:
    rows = [{"file_name": f"{n}.jpg", **{name: value for name, (_, value, _) in features.items()}, **(values or {})} for n in range(4)]
    write_files(folder / "in", {f"{n}.jpg": jpeg(n, orientation) for n in range(4)})
    (folder / "in/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["prepare", "--input", str(folder / "in/rows.jsonl"), "--output", str(folder / "out"), "--splits=train=1", "--label=none"]
    kinds = [f"--feature={name}:{kind}" for name, (kind, _, _) in features.items()]
    assert main([*command, *kinds, "--no_report", "--overwrite", *options]) == 0
    return json.loads((folder / "out/statistics.json").read_text())["warnings"]


def find_feature_names(text: str) -> set[str]:
    return {name for name in FEATURES if f"'{name}'" in text}


@pytest.mark.slow
@pytest.mark.parametrize("size", ["short=30", "long=50", "exact=30x50"])
def test_warns_about_absolute_coordinates_when_images_are_resized(tmp_path, size, capfd):
    option = f"--image_size={size}"
    (warning,) = prepare_warnings(tmp_path, option)
    assert find_feature_names(warning) == {name for name, (*_, (is_wrong, _)) in FEATURES.items() if is_wrong}
    assert ": 4. " in warning and "--image_size" in warning
    assert warning in capfd.readouterr().err
    assert not prepare_warnings(tmp_path)
    fractions = {"landmarks": [0.1, 0.2, 0.3, 0.4], "x1": 0.125, "polygon": [0.1, 0.2], "numbers": [0.1] * 6}
    others = {name: feature for name, feature in FEATURES.items() if name != "leftEye_y"}
    assert not prepare_warnings(tmp_path, option, values=fractions, features=others)
    assert not prepare_warnings(tmp_path, "--image_size=short=300"), "no image is that large"


@pytest.mark.slow
@pytest.mark.parametrize("orientation", [2, 6])
def test_warns_about_coordinates_when_exif_rotates_images(tmp_path, orientation):
    (warning,) = prepare_warnings(tmp_path, orientation=orientation)
    assert find_feature_names(warning) == {name for name, (*_, (_, is_wrong)) in FEATURES.items() if is_wrong}
    assert ": 4. " in warning and "EXIF" in warning


def test_no_warning_about_boxes_that_are_resized_with_the_image(tmp_path):
    annotations = [{"id": n, "image_id": n, "category_id": 1, "bbox": [2, 3, 20, 30]} for n in range(4)]
    images = [{"id": n, "file_name": f"{n}.jpg", "height": HEIGHT, "width": WIDTH} for n in range(4)]
    write_files(tmp_path / "in", {f"{n}.jpg": jpeg(n) for n in range(4)})
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "in/annotations.json").write_text(json.dumps(coco))
    command = ["prepare", "--input", str(tmp_path / "in/annotations.json"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main([*command, "--image_size=short=30", "--no_report"]) == 0
    assert not json.loads((tmp_path / "out/statistics.json").read_text())["warnings"]
