"""Tests that `prepare` stores the keypoints in tables as fractions of the upright image."""

import json
import pathlib
import re
import tarfile
from typing import Any, Sequence

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipelines.__main__ import main
from beam_pipelines.columns.forms import feature_of, parse_column
from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.features.keypoints import check_points
from made_images import png, write_files
from made_points import find_points, prepare_table, write_points
from tf_input.dataset_format import Feature

HEIGHT, WIDTH = 40, 60
NAMES = "left_eye_x,left_eye_y,right_eye_x,right_eye_y,nose_x,nose_y"
NUM = 4


def write_images(root: pathlib.Path, num: int = NUM) -> pathlib.Path:
    return write_files(root, {f"{index}.png": png(index, HEIGHT, WIDTH) for index in range(num)})


def read_points(root: pathlib.Path, name: str = "pose") -> dict[str, list[float]]:
    """Returns the stored numbers of each example, by key."""
    points = {}
    for record in tf.data.TFRecordDataset(sorted(map(str, (root / "out").glob("*.tfrecord-*")))).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        points[features["key"].bytes_list.value[0].decode()] = list(features[name].float_list.value)
    return points


def schema_of(root: pathlib.Path, name: str = "pose") -> dict[str, Any]:
    manifest = json.loads((root / "out/manifest.json").read_text())
    return next(feature for feature in manifest["schema"] if feature["name"] == name)


def dead_letters(root: pathlib.Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (root / "out/dead_letters.jsonl").read_text().splitlines()]


def warnings_of(root: pathlib.Path) -> list[str]:
    return json.loads((root / "out/statistics.json").read_text())["warnings"]


def fractions(points: Sequence[Sequence[float]]) -> list[float]:
    """Converts x and y from pixels to fractions (float32), and keeps the visibility."""
    sides = (WIDTH, HEIGHT, 1)
    return [float(np.float32(value / side)) for point in points for value, side in zip(point, sides)]


XY = [[10.5, 3], [59, 39.25], [0, 40]]
XYV = [[10.5, 3, 2], [0, 0, 0], [33, 40, 1]]
AS_COLUMNS = "file_name,a1,b1,a2,b2,a3,b3\n0.png,10.5,3,59,39.25,0,40\n"
AS_TRIPLES = "file_name,a,b,c,d,e,f,g,h,i\n0.png,10.5,3,2,0,0,0,33,40,1\n"
CASES = {  # table name, table, option, expected points
    "columns of pairs": ("t.csv", AS_COLUMNS, "pose=a1,b1,a2,b2,a3,b3:keypoints", XY),
    "columns of triples": ("t.csv", AS_TRIPLES, "pose=a,b,c,d,e,f,g,h,i:keypoints[3,3]", XYV),
    "columns of pairs with derived visibility": (
        "t.csv", AS_COLUMNS.replace("59,39.25", ","), "pose=a1,b1,a2,b2,a3,b3:keypoints[3,3]", [[10.5, 3, 2], [0, 0, 0], [0, 40, 2]]
    ),
    "columns of pairs with -1 for a missing point": (
        "t.csv", AS_COLUMNS.replace("59,39.25", "-1,-1.0"), "pose=a1,b1,a2,b2,a3,b3:keypoints[3,3]", [[10.5, 3, 2], [0, 0, 0], [0, 40, 2]]
    ),
    "columns of triples with -1 for a missing point": (
        "t.csv", AS_TRIPLES.replace("33,40,1", "-1,-1,1"), "pose=a,b,c,d,e,f,g,h,i:keypoints[3,3]", [[10.5, 3, 2], [0, 0, 0], [0, 0, 0]]
    ),
    "nested list": ("t.jsonl", json.dumps({"file_name": "0.png", "pose": XY}), "pose:keypoints", XY),
    "nested list with visibility": ("t.jsonl", json.dumps({"file_name": "0.png", "pose": XYV}), "pose:keypoints", XYV),
    "nested list with null": (
        "t.jsonl", json.dumps({"file_name": "0.png", "pose": [[1, 2], None, [None, None]]}), "pose:keypoints[3,3]", [[1, 2, 2], [0] * 3, [0] * 3]
    ),
    "flat list": ("t.jsonl", json.dumps({"file_name": "0.png", "pose": sum(XYV, [])}), "pose:keypoints[3,3]", XYV),
    "JSON in a cell of CSV": ("t.csv", f'file_name,pose\n0.png,"{json.dumps(XY)}"\n', "pose:keypoints", XY),
    "blanks in a cell of CSV": ("t.csv", "file_name,pose\n0.png,10.5 3 59 39.25 0 40\n", "pose:keypoints[3]", XY),
    "NumPy's text": ("t.csv", "file_name,pose\n0.png,[10.5 3. 59. 39.25 0. 40.]\n", "pose:keypoints[3]", XY),
}


@pytest.mark.parametrize("name, table, option, expected", CASES.values(), ids=CASES)
def test_forms_of_tables(tmp_path, name, table, option, expected):
    write_images(tmp_path, 1)
    assert prepare_table(tmp_path, table, f"--feature={option}", "--label=none", name=name) == 0
    assert read_points(tmp_path) == {"0.png": fractions(expected)}
    assert schema_of(tmp_path)["kind"] == "keypoints" and schema_of(tmp_path)["shape"] == [3, len(expected[0])]
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--image_size=short=20",), ("--image_size=exact=16x16",)], ids=lambda options: "".join(options) or "as stored")
def test_resizing_does_not_change_keypoints(tmp_path, options):
    write_images(tmp_path, 1)
    assert prepare_table(tmp_path, AS_COLUMNS, "--feature=pose=a1,b1,a2,b2,a3,b3:keypoints", "--label=none", *options) == 0
    assert read_points(tmp_path) == {"0.png": fractions(XY)}
    assert not warnings_of(tmp_path)


def test_label_is_a_target_and_names_come_from_columns(tmp_path):
    write_images(tmp_path, 1)
    assert prepare_table(tmp_path, f"file_name,{NAMES}\n0.png,1,2,3,4,5,6\n", f"--label={NAMES}:keypoints") == 0
    assert schema_of(tmp_path, "label")["point_names"] == ["left_eye", "right_eye", "nose"]
    assert read_points(tmp_path, "label") == {"0.png": fractions([[1, 2], [3, 4], [5, 6]])}


@pytest.mark.slow
@pytest.mark.parametrize("drawn_on", ["file", "upright"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_points_follow_the_rotation_of_their_image(tmp_path, orientation, drawn_on):
    in_file = [(10, 8), (50, 14), (20, 30)]
    write_points(tmp_path, {"0.png": in_file}, HEIGHT, WIDTH, orientation)
    if drawn_on == "upright":  # measured in the stored image by its colors, independently of EXIF tables
        assert prepare_table(tmp_path, "file_name,label\n0.png,a\n") == 0
        given = find_points(stored_image(tmp_path))
    else:
        given = in_file
    row = ",".join(f"{value:.1f}" for point in given for value in point)
    assert prepare_table(tmp_path, f"file_name,{NAMES}\n0.png,{row}\n", f"--feature=pose={NAMES}:keypoints", "--label=none", f"--drawn_on={drawn_on}") == 0
    pixels = stored_image(tmp_path)
    (stored,) = read_points(tmp_path).values()
    actual = np.reshape(stored, (3, 2)) * pixels.shape[1::-1]
    np.testing.assert_allclose(actual, find_points(pixels), atol=1e-4)


def stored_image(root: pathlib.Path) -> np.ndarray:
    (record,) = tf.data.TFRecordDataset(sorted(map(str, (root / "out").glob("*.tfrecord-*")))).as_numpy_iterator()
    return tf.io.decode_image(tf.train.Example.FromString(record).features.feature["image"].bytes_list.value[0]).numpy()


@pytest.mark.slow
def test_rotated_images_are_counted_in_a_warning(tmp_path):
    write_points(tmp_path, {"0.png": [(10, 8)]}, HEIGHT, WIDTH, orientation=6)
    assert prepare_table(tmp_path, "file_name,x,y\n0.png,10,8\n", "--feature=pose=x,y:keypoints", "--label=none") == 0
    (warning,) = warnings_of(tmp_path)
    assert "--drawn_on" in warning


BAD_CELLS = {
    "outside": ("61.1", "0"),
    "infinite": ("inf", "0"),
    "huge": ("1e300", "0"),
    "not a number": ("x", "0"),
    "missing y": ("3", ""),
    "missing point": ("", ""),
    "NaN": ("nan", "nan"),
    "-1 for a missing point": ("-1", "-1"),
}


@pytest.mark.parametrize("x, y", BAD_CELLS.values(), ids=BAD_CELLS)
def test_bad_point_without_visibility_is_a_dead_letter(tmp_path, x, y):
    write_images(tmp_path)
    table = f"file_name,x,y\n0.png,{x},{y}\n1.png,9,9\n2.png,60.9,40.9\n3.png,-1,-0.5\n"
    assert prepare_table(tmp_path, table, "--feature=pose=x,y:keypoints", "--label=none", "--max_bad_fraction=0.5") == 0
    (letter,) = dead_letters(tmp_path)
    assert letter["reason"] in ("bad_keypoints", "bad_value") and "pose" in letter["message"] or "'x'" in letter["message"]
    points = read_points(tmp_path)
    assert (points["2.png"], points["3.png"]) == ([1, 1], [0, 0]), "a point up to one pixel outside is moved to the edge"


BAD_VALUES = {
    "visibility 3": [[1, 1, 3]],
    "visibility 0.5": [[1, 1, 0.5]],
    "missing visibility": [[1, 1, None]],
    "too many points": [[1, 1, 1], [1, 1, 1]],
    "too few numbers": [[1]],
    "a text": "abc",
    "an object": {"x": 1},
    "nested too deeply": [[[[[[1]]]]]],
    "a deeply nested text": "[" * 100_000 + "]" * 100_000,
    "list in a point": [[1, [2], 1]],
    "empty": [],
    "none": None,
}


def test_bad_lists_are_dead_letters(tmp_path):
    write_images(tmp_path, len(BAD_VALUES) + 1)
    rows = [{"file_name": f"{index}.png", "pose": value} for index, value in enumerate([[[9, 9, 1]], *BAD_VALUES.values()])]
    table = "\n".join(map(json.dumps, rows))
    assert prepare_table(tmp_path, table, "--feature=pose:keypoints", "--label=none", "--max_bad_fraction=1", name="t.jsonl") == 0
    letters = {letter["path"]: letter for letter in dead_letters(tmp_path)}
    assert len(letters) == len(BAD_VALUES), [*letters]
    assert read_points(tmp_path)["0.png"] == fractions([[9, 9, 1]])


def test_points_outside_get_visibility_0_with_clip(tmp_path):
    write_images(tmp_path)
    rows = [{"file_name": f"{index}.png", "pose": [[-20, 3, 2], [5, 5, 1], [7, 900, 0]]} for index in range(2)]
    table = "\n".join(map(json.dumps, rows))
    options = ["--feature=pose:keypoints", "--label=none", "--max_bad_fraction=1"]
    assert prepare_table(tmp_path, table, *options, name="t.jsonl") != 0, "all rows are rejected"
    assert prepare_table(tmp_path, table, *options, "--bad_boxes=clip", name="t.jsonl") == 0
    assert read_points(tmp_path)["0.png"] == fractions([[0, 0, 0], [5, 5, 1], [0, 0, 0]])
    statistics = json.loads((tmp_path / "out/statistics.json").read_text())
    assert statistics["num_outside"] == {"pose": 2}
    assert statistics["splits"]["train"]["counts"] == {"pose": {"num_points": 6, "num_labeled": 2}}
    assert "visibility 0" in warnings_of(tmp_path)[0], "the position of an unlabeled point is not stored"


def test_points_without_visibility_are_not_clipped(tmp_path):
    write_images(tmp_path)
    options = ["--feature=pose=x,y:keypoints", "--label=none", "--max_bad_fraction=0.5", "--bad_boxes=clip"]
    assert prepare_table(tmp_path, "file_name,x,y\n0.png,-20,1\n1.png,9,9\n", *options) == 0
    assert "keypoints[1,3]" in dead_letters(tmp_path)[0]["message"]


UNITS = {  # value -> options -> exit code, stored number
    "relative": (0.25, "--box_unit=relative", 0, 0.25),
    "relative as pixels": (0.25, "--box_unit=pixels", 0, float(np.float32(0.25 / WIDTH))),
    "relative without option": (0.25, None, 2, None),
    "pixels as relative": (25, "--box_unit=relative", 2, None),
}


@pytest.mark.parametrize("value, option, code, expected", UNITS.values(), ids=UNITS)
def test_box_unit_applies_to_keypoints(tmp_path, value, option, code, expected, capfd):
    write_images(tmp_path)
    table = f"file_name,x,y\n0.png,{value},{value}\n"
    assert prepare_table(tmp_path, table, "--feature=pose=x,y:keypoints", "--label=none", *([option] if option else [])) == code
    if code:
        assert "--box_unit" in capfd.readouterr().err
    else:
        assert read_points(tmp_path)["0.png"][0] == expected
        assert bool(warnings_of(tmp_path)) == (option == "--box_unit=pixels")


def test_box_unit_without_positions_is_rejected(tmp_path):
    write_images(tmp_path)
    assert prepare_table(tmp_path, "file_name,x\n0.png,0.5\n", "--feature=x:float", "--label=none", "--box_unit=relative") == 2


def test_keypoints_need_an_image_that_is_read(tmp_path, capfd):
    write_images(tmp_path)
    for option in ("--image=none", "--check=none"):
        assert prepare_table(tmp_path, "file_name,x,y\n0.png,9,9\n", "--feature=pose=x,y:keypoints", "--label=none", option) == 2
        assert option in capfd.readouterr().err


COLUMNS = {
    "pose=x1,y1,x2,y2:keypoints": (2, 2),
    "x1,y1,x2,y2,x3,y3:keypoints[2,3]": (2, 3),
    "x1,y1,x2,y2:keypoints[2,3]": (2, 3),
    "points:keypoints": (),
    "points:keypoints[17]": (17, 2),
    "points:keypoints[17,3]": (17, 3),
}
BAD_COLUMNS = (
    *("a,b,c:keypoints", "p:keypoints[]", "p:keypoints[?]", "p:keypoints[5,4]", "p:keypoints[0]", "p:keypoints[1,2,3]", "p:keypoints[99999999]"),
    *("x1,y1,v1,x2,y2,v2:keypoints", "x1,x2,y1,y2:keypoints", "x1,y1:keypoints[3]", "p:keypoints[float32,3]", "p:landmarks"),
)


def test_columns_are_parsed():
    for text, shape in COLUMNS.items():
        assert parse_column("--feature", text, "text").shape == shape, text
    for text in BAD_COLUMNS:
        with pytest.raises(UserError, match="keypoints"):
            parse_column("--feature", text, "text")


NAMED = {
    "left_eye_x,left_eye_y,right_eye_x,right_eye_y": ("left_eye", "right_eye"),
    "lefteyeX,lefteyeY,noseX,noseY": ("lefteye", "nose"),
    "x_nose,y_nose,x_tail,y_tail": ("nose", "tail"),
    "x1,y1,x2,y2": (),
    "a,b,c,d": (),
    "box,matrix": (),
}


@pytest.mark.parametrize("columns, names", NAMED.items())
def test_names_of_points_come_from_columns(columns, names):
    assert feature_of(parse_column("--feature", f"pose={columns}:keypoints", "text")).point_names == names


def test_changed_keypoints_are_detected():
    feature = Feature("pose", "keypoints", (1, 3))
    check_points(feature, np.array([0.5, 1, 2], np.float32))
    for numbers in ([1.5, 0, 1], [-0.1, 0, 1], [np.nan, 0, 1], [0, 0, 3], [0.5, 0, 0]):
        with pytest.raises(InvalidInput):
            check_points(feature, np.array(numbers, np.float32))


def objects(keypoints: Any) -> str:
    return json.dumps({"file_name": "0.png", "objects": {"bbox": [[5, 5, 30, 20], [1, 2, 3, 4]], "category": ["a", "b"], "keypoints": keypoints}})


OBJECTS = {
    "flat with visibility": ([[10, 6, 2, 0, 0, 0], [2, 3, 1, 2, 4, 2]], [[[10, 6, 2], [0, 0, 0]], [[2, 3, 1], [2, 4, 2]]]),
    "flat pairs": ([[10, 6, 7, 8], [2, 3, 4, 5]], [[[10, 6], [7, 8]], [[2, 3], [4, 5]]]),
    "nested": ([[[10, 6]], [[2, 3]]], [[[10, 6]], [[2, 3]]]),
    "missing for one object": ([[[10, 6, 2]], None], [[[10, 6, 2]], [[0, 0, 0]]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("keypoints, expected", OBJECTS.values(), ids=OBJECTS)
def test_objects_of_tables_have_keypoints(tmp_path, keypoints, expected):
    write_images(tmp_path, 1)
    assert prepare_table(tmp_path, objects(keypoints), "--label=objects", name="t.jsonl") == 0
    assert read_points(tmp_path, "objects/keypoints") == {"0.png": fractions([point for points in expected for point in points])}
    assert schema_of(tmp_path, "objects/keypoints")["shape"] == [None, len(expected[0]), len(expected[0][0])]


@pytest.mark.slow
def test_bad_keypoints_of_objects_are_dead_letters(tmp_path):
    write_images(tmp_path)
    rows = [objects([[1, 1, 2], [2, 3, 2]]), objects([[1, 1, 2], [2, 3, 5]]), objects([[1, 1, 2]]), objects([[1], [2]])]
    table = "\n".join(row.replace("0.png", f"{index}.png") for index, row in enumerate(rows))
    assert prepare_table(tmp_path, table, "--label=objects", "--max_bad_fraction=0.9", name="t.jsonl") == 0
    assert sorted(letter["path"] for letter in dead_letters(tmp_path)) == ["t.jsonl:2", "t.jsonl:3", "t.jsonl:4"]


ARRAYS = {
    "nested": (np.array([[[10.5, 3], [59, 39.25]]] * 4), "pose:keypoints", [[10.5, 3], [59, 39.25]]),
    "with visibility": (np.array([[[10.5, 3, 2], [59, 39.25, 1]]] * 4), "pose:keypoints", [[10.5, 3, 2], [59, 39.25, 1]]),
    "flat": (np.array([[10, 3, 59, 39]] * 4), "pose:keypoints[2]", [[10, 3], [59, 39]]),
    "flat with a missing point": (np.array([[10, 3, np.nan, np.nan]] * 4), "pose:keypoints[2,3]", [[10, 3, 2], [0, 0, 0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("values, option, expected", ARRAYS.values(), ids=ARRAYS)
def test_arrays_have_keypoints(tmp_path, values, option, expected):
    images = np.zeros((4, HEIGHT, WIDTH, 3), np.uint8)
    np.savez(tmp_path / "in.npz", images=images, pose=values, names=np.array(["a", "b"] * 2))
    command = ["prepare", "--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out"), "--splits=train=1", "--no_report"]
    assert main([*command, f"--feature={option}", "--image_column=images", "--label=none"]) == 0
    assert [*read_points(tmp_path).values()] == [fractions(expected)] * 4
    for bad in ("names:keypoints", "pose:keypoints[7]"):
        assert main([*command, f"--feature={bad}", "--image_column=images", "--label=none", "--overwrite"]) == 2


@pytest.mark.slow
def test_lists_of_images_have_keypoints(tmp_path, capfd):
    write_images(tmp_path)
    (tmp_path / "list.txt").write_text("0.png 10.5 3 59 39.25 0 40\n1.png 1 2 3 4 5 6\n")
    command = ["prepare", "--input", str(tmp_path / "list.txt"), "--output", str(tmp_path / "out"), "--splits=train=1", "--no_report"]
    assert main([*command, "--label=label:keypoints[3]"]) == 0
    assert read_points(tmp_path, "label")["0.png"] == fractions(XY)
    assert main([*command, "--label=label:keypoints", "--overwrite"]) == 2
    assert "keypoints[N]" in capfd.readouterr().err


@pytest.mark.slow
def test_report_and_inspect_draw_keypoints(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_points(tmp_path, {"0.png": [(10, 8), (50, 14), (20, 30)]}, HEIGHT, WIDTH)
    table = f"file_name,{NAMES}\n0.png,10,8,50,14,,\n"
    command = ["prepare", "--input", str(tmp_path / "rows.csv"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    (tmp_path / "rows.csv").write_text(table)
    assert main([*command, f"--feature=pose={NAMES}:keypoints[3,3]", "--label=none"]) == 0
    report = (tmp_path / "out/report.html").read_text()
    assert set(re.findall("<circle[^>]*><title>(.*?)</title>", report)) == {"left_eye", "right_eye"} and "show-marks" in report
    capfd.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--example", "train:0"]) == 0
    path = capfd.readouterr().out.split("saved to ")[1].strip()
    drawn = np.asarray(Image.open(path).convert("RGB")).astype(int)
    plain = np.repeat(np.repeat(stored_image(tmp_path), len(drawn) // HEIGHT, 0), len(drawn) // HEIGHT, 1)
    rows, columns = np.nonzero((drawn != plain).any(axis=2))
    scale = len(drawn) / HEIGHT
    for x, y in ((10, 8), (50, 14)):
        near = (np.abs(rows / scale - y) < 2) & (np.abs(columns / scale - x) < 2)
        assert near.sum() > 20
    assert not ((np.abs(rows / scale - 30) < 4) & (np.abs(columns / scale - 20) < 4)).any(), "a missing point is not drawn"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["parquet", "webdataset"])
def test_exports_have_pixels(tmp_path, target):
    write_images(tmp_path, 1)
    assert prepare_table(tmp_path, AS_TRIPLES, "--feature=pose=a,b,c,d,e,f,g,h,i:keypoints[3,3]", "--label=none") == 0
    assert main(["export", str(tmp_path / "out"), str(tmp_path / "exported"), "--to", target]) == 0
    if target == "parquet":
        (file,) = (tmp_path / "exported").rglob("*.parquet")
        (points,) = pq.read_table(file)["pose"].to_pylist()
    else:
        (file,) = (tmp_path / "exported").rglob("*.tar")
        with tarfile.open(file) as tar:
            (name,) = (name for name in tar.getnames() if name.endswith(".json"))
            points = json.load(tar.extractfile(name))["pose"]
    assert points == XYV
