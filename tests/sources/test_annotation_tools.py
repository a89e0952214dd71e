"""Tests sources that read files of annotation tools: shapes, invalid and hostile files, layouts, links and memory.

In each case, image `1` has the given annotations, and the images `2` and `3` have none. `test_conformance` and
`test_source_tasks` test the detection of the formats and the stored values.
"""

import base64
import csv
import io
import json
import math
import os
import pathlib
import tracemalloc
from typing import Any, Mapping, Sequence

import numpy as np
import PIL.Image
import pytest

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.columns.column import Column
from beam_pipelines.columns.forms import parse_labels
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.formats.label_studio.brush import decode_brush
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.registry import source_classes
from listed import Listing, open_kind
from made_images import encode, png, write_files

WIDTH, HEIGHT = 48, 32
IMAGES = {f"{name}.png": png(int(name), HEIGHT, WIDTH) for name in "123"}
CAT = ("cat", 4, 5, 14, 17)  # class, xmin, ymin, xmax, ymax
LABEL_FILE = "training/label_2/1.txt"
Files = dict[str, bytes]


def corners(box: tuple) -> list[list[float]]:
    _, xmin, ymin, xmax, ymax = box
    return [[xmin, ymin], [xmax, ymin], [xmax, ymax], [xmin, ymax]]


def labelme(shapes: Sequence[Mapping[str, Any]], **fields: Any) -> bytes:
    """Returns the content of a LabelMe JSON file."""
    size = {"imageHeight": HEIGHT, "imageWidth": WIDTH}
    content = {"version": "5.2.1", "flags": {}, "shapes": shapes, "imagePath": "1.png", "imageData": None, **size}
    return json.dumps({**content, **fields}).encode()


def labelme_shape(box: tuple, kind: str = "rectangle", **fields: Any) -> dict[str, Any]:
    points = corners(box)[2::-2] if kind == "rectangle" else corners(box)
    return {"label": box[0], "points": points, "group_id": None, "shape_type": kind, "flags": {}, **fields}


def labelme_files(*shapes: Mapping[str, Any]) -> Files:
    others = {f"{name}.json": labelme([], imagePath=f"{name}.png") for name in "23"}
    return IMAGES | {"1.json": labelme(shapes)} | others


def labelme_mask(pixels: np.ndarray, points: list) -> dict[str, Any]:
    mask = base64.b64encode(encode(pixels, "PNG")).decode()
    return {"label": "cat", "points": points, "shape_type": "mask", "mask": mask}


def in_folder(name: str, data: bytes) -> Files:
    """Returns a file that annotates the images in the folder `images`."""
    return {f"images/{image}": content for image, content in IMAGES.items()} | {name: data}


def cvat(*images: str, start: str = "<?xml version='1.0' encoding='utf-8'?>", meta: str = "") -> bytes:
    return f"{start}<annotations><version>1.1</version>{meta}{''.join(images)}</annotations>".encode()


def cvat_image(*shapes: str, name: str = "1.png", more: str = "") -> str:
    return f'<image id="0" name="{name}" width="{WIDTH}" height="{HEIGHT}" {more}>{"".join(shapes)}</image>'


def cvat_box(box: tuple, more: str = "", inner: str = "") -> str:
    label, *sides = box
    stated = " ".join(f'{name}="{side}"' for name, side in zip(("xtl", "ytl", "xbr", "ybr"), sides))
    return f'<box label="{label}" occluded="1" {stated} {more}>{inner}</box>'


def cvat_polygon(box: tuple) -> str:
    points = ";".join(f"{x},{y}" for x, y in corners(box))
    return f'<polygon label="{box[0]}" occluded="0" points="{points}" z_order="0"/>'


def cvat_files(*shapes: str, more: str = "", **fields: str) -> Files:
    meta = "<meta><task><mode>annotation</mode><labels><label><name>cat</name></label></labels></task></meta>"
    others = [cvat_image(name=f"{name}.png") for name in "23"]
    return in_folder("annotations.xml", cvat(cvat_image(*shapes, more=more, **fields), *others, meta=meta))


SIZE = {"original_width": WIDTH, "original_height": HEIGHT}


def percent_rectangle(box: tuple, **fields: Any) -> dict[str, Any]:
    label, xmin, ymin, xmax, ymax = box
    sides = {"x": xmin / WIDTH, "y": ymin / HEIGHT, "width": (xmax - xmin) / WIDTH, "height": (ymax - ymin) / HEIGHT}
    return {**{side: 100 * number for side, number in sides.items()}, "rotation": 0, "rectanglelabels": [label], **fields}


def percent_polygon(box: tuple) -> dict[str, Any]:
    points = [[100 * x / WIDTH, 100 * y / HEIGHT] for x, y in corners(box)]
    return {"points": points, "closed": True, "polygonlabels": [box[0]]}


def result(value: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    kind = next((name for name in value if name.endswith("labels")), "choices")
    return {**SIZE, "image_rotation": 0, "value": value, "from_name": "tag", "to_name": "image", "type": kind, "origin": "manual", **fields}


def task(*results: Mapping[str, Any], image: str = "/data/upload/3/0a1b2c3d-1.png", number: int = 1, annotations: Any = None) -> dict[str, Any]:
    if annotations is None:
        annotations = [{"id": 7, "completed_by": 1, "was_cancelled": False, "result": results}]
    return {"id": number, "annotations": annotations, "predictions": [], "data": {"image": image}, "project": 3}


def task_files(changed: Any) -> Files:
    """Returns a Label Studio export with the given task for image 1."""
    return in_folder("export.json", json.dumps([changed, *(task(image=f"s3://bucket/a/{name}.png", number=int(name)) for name in "23")]).encode())


def label_studio_files(*values: Mapping[str, Any]) -> Files:
    return task_files(task(*map(result, values)))


def encode_brush(pixels: np.ndarray, sizes: Sequence[int] = (3, 4, 8, 16)) -> list[int]:
    """Encodes a mask like Label Studio's brush. The values of single pixels are stored verbatim."""
    values = np.repeat(pixels.ravel() * 255, 4)
    bits = f"{len(values):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in sizes)
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)]
    for start, end in zip(starts, starts[1:]):
        while start < end:
            length = min(end - start, 1 << sizes[-1])
            index = next(index for index, size in enumerate(sizes) if length <= 1 << size)
            is_repeated = length != 4
            data = f"{values[start]:08b}" if is_repeated else "".join(f"{value:08b}" for value in values[start : start + length])
            bits += f"{is_repeated:b}{index:02b}{length - 1:0{sizes[index]}b}{data}"
            start += length
    bits += "0" * (-len(bits) % 8)
    return [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]


def via_region(box: tuple, kind: str = "rect", **attributes: Any) -> dict[str, Any]:
    label, xmin, ymin, xmax, ymax = box
    rectangle = {"name": "rect", "x": xmin, "y": ymin, "width": xmax - xmin, "height": ymax - ymin}
    xs, ys = zip(*corners(box))
    shape = rectangle if kind == "rect" else {"name": "polygon", "all_points_x": xs, "all_points_y": ys}
    return {"shape_attributes": shape, "region_attributes": {"kind": label, **attributes}}


def via_shape(name: str, **fields: Any) -> dict[str, Any]:
    return {"shape_attributes": {"name": name, **fields}, "region_attributes": {"kind": "cat"}}


def via_entry(*regions: Any, name: str = "1.png", **attributes: Any) -> dict[str, Any]:
    return {"filename": name, "size": 123, "regions": regions, "file_attributes": attributes}


def via_project(entries: Mapping[str, Any]) -> bytes:
    return json.dumps({"_via_settings": {"core": {}}, "_via_img_metadata": entries, "_via_attributes": {"region": {}}}).encode()


def via_entries(*regions: Any, **fields: Any) -> dict[str, Any]:
    return {"1": via_entry(*regions) | fields, **{name: via_entry(name=f"{name}.png") for name in "23"}}


def via_files(*regions: Any, **fields: Any) -> Files:
    return in_folder("via_project.json", via_project(via_entries(*regions, **fields)))


def via_csv(entries: Mapping[str, Any]) -> bytes:
    """Converts entries to a CSV export of the VGG Image Annotator."""
    written = io.StringIO()
    rows = csv.writer(written)
    rows.writerow(["filename", "file_size", "file_attributes", "region_count", "region_id", "region_shape_attributes", "region_attributes"])
    for entry in entries.values():
        for number, region in enumerate(entry["regions"] or [{"shape_attributes": {}, "region_attributes": {}}]):
            cells = (json.dumps(region[field]) for field in ("shape_attributes", "region_attributes"))
            rows.writerow([entry["filename"], 123, json.dumps(entry["file_attributes"]), len(entry["regions"]), number, *cells])
    return written.getvalue().encode()


def kitti(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def kitti_line(box: tuple, start: str = "0.25 2 -1.58", end: str = "1.65 1.67 3.64 -0.65 1.71 46.70 -1.59") -> str:
    return f"{box[0]} {start} {' '.join(f'{side:.2f}' for side in box[1:])} {end}"


DONT_CARE = "DontCare -1 -1 -10 0.00 0.00 9.00 9.00 -1 -1 -1 -1000 -1000 -1000 -10"


def kitti_files(*lines: str) -> Files:
    files = {f"training/image_2/{name}": data for name, data in IMAGES.items()} | {"testing/image_2/9.png": b"x"}
    return files | {f"training/label_2/{name}.txt": kitti(DONT_CARE) for name in "23"} | {LABEL_FILE: kitti(*lines)}


def visdrone_line(box: tuple, number: int = 4, end: str = "0,2") -> str:
    return f"{box[1]},{box[2]},{box[3] - box[1]},{box[4] - box[2]},1,{number},{end}\r\n"


def visdrone_files(*lines: str) -> Files:
    images = {f"VisDrone2019-DET-train/images/{name}": data for name, data in IMAGES.items()}
    labels = {f"VisDrone2019-DET-train/annotations/{name}.txt": b"" for name in "23"}
    return images | labels | {"VisDrone2019-DET-train/annotations/1.txt": "".join(lines).encode()}


def wider_line(box: tuple, end: str = "1 0 1 0 2 0 ") -> str:
    return f"{box[1]} {box[2]} {box[3] - box[1]} {box[4] - box[2]} {end}\n"


def wider_face_files(*lines: str) -> Files:
    empty = "".join(f"0--Parade/{name}.png\n0\n0 0 0 0 0 0 0 0 0 0 \n" for name in "23")
    text = f"0--Parade/1.png\n{len(lines)}\n{''.join(lines)}{empty}"
    files = {"wider_face_split/wider_face_train_bbx_gt.txt": text.encode(), "wider_face_split/readme.txt": b"Hello\n"}
    return {f"WIDER_train/images/0--Parade/{name}": data for name, data in IMAGES.items()} | files


def brush(pixels: np.ndarray, **fields: Any) -> dict[str, Any]:
    return {"format": "rle", "rle": encode_brush(pixels), "brushlabels": ["cat"], **fields}


CAT_PIXELS = np.zeros((HEIGHT, WIDTH), np.uint8)
CAT_PIXELS[5:17, 4:14] = 1
CAT_PIXELS[4, 20] = 0

WRITERS = {"labelme": labelme_files, "cvat": cvat_files, "label_studio": label_studio_files, "via": via_files, "kitti": kitti_files}
WRITERS |= {"visdrone": visdrone_files, "wider_face": wider_face_files}
FOLDERS = {"labelme": "", "kitti": "training/image_2/", "visdrone": "VisDrone2019-DET-train/images/", "wider_face": "WIDER_train/images/0--Parade/"}  # the folder of the images; by default `images/`
# The same annotation in each format: an object of the class `cat`.
ONE_OBJECT = {
    "labelme": labelme_shape(CAT),
    "cvat": cvat_box(CAT),
    "label_studio": percent_rectangle(CAT),
    "via": via_region(CAT),
    "kitti": kitti_line(CAT),
}
LISTED = ("cvat", "label_studio", "via")  # the formats with one annotation file for many images


def write_case(root: pathlib.Path, kind: str, content: tuple | Files) -> str:
    """Writes images and annotations. `content` contains either the shapes in image 1 or additional files."""
    return write(root, WRITERS[kind](*(() if isinstance(content, dict) else content)) | (content if isinstance(content, dict) else {}))


def write_one(root: pathlib.Path, kind: str) -> str:
    return write_case(root, kind, (ONE_OBJECT[kind],))


def boxes_of(listed: Listing) -> dict[str, list[tuple]]:
    """Returns the class and the sides (xmin, ymin, xmax, ymax) in pixels of each object."""
    return {key: pixel_boxes(image.values["objects"]) for key, image in listed.images.items()}


def pixel_boxes(objects: Objects) -> list[tuple]:
    height, width = objects.image_size if objects.is_relative and objects.image_size else (1, 1)
    sides = [(box[1] * width, box[0] * height, box[3] * width, box[2] * height) for box in objects.boxes]
    return [(label, *box) for label, box in zip(objects.labels, sides)]


def write(root: pathlib.Path, files: Mapping[str, bytes]) -> str:
    return os.fspath(write_files(root, files))


# Valid annotations: (shapes of image 1 or changed files, expected boxes of image 1, expected additional features).

_TURNED = [("cat", 10 - 5, 10 - 3, 10 + 5, 10 + 3)]  # a box of 6 x 10 pixels, rotated by 90 degrees about (10, 10)
DOG = ("dog", 10, 10, 30, 20)
PERCENT_ELLIPSE = {"x": 100 * 10 / WIDTH, "y": 100 * 10 / HEIGHT, "radiusX": 100 * 3 / WIDTH, "radiusY": 100 * 5 / HEIGHT, "rotation": 90}
GENERIC = {name: value for name, value in percent_rectangle(CAT).items() if name != "rectanglelabels"} | {"labels": ["cat"]}
MIN_IMAGE = "/data/local-files/?d=pictures%2F1.png"
MIN_ROWS = [
    {"image": MIN_IMAGE, "id": 1, "tag": [{**percent_rectangle(CAT), **SIZE}], "annotator": 1, "annotation_id": 1},
    {"image": MIN_IMAGE, "id": 1, "tag": [], "annotator": 2, "annotation_id": 2},
    *({"image": f"https://host/{name}.png?token=1", "id": int(name), "annotator": 1, "annotation_id": int(name)} for name in "23"),
]
CANCELLED = [
    {"was_cancelled": True, "result": []},
    {"was_cancelled": False, "result": [result(percent_rectangle(CAT))]},
    {"was_cancelled": False, "result": []},
]
CVAT_MASK = '<mask label="cat" rle="13, 10, 2, 10, 1" left="3" top="4" width="12" height="3"></mask>'
CVAT_POINTS = '<points label="cat" points="1,2"/>', '<polyline label="cat" points="1,2;3,4"/>'
POINT, LINE = ({"label": "x", "points": [[1, 1], [9, 9]][:num], "shape_type": kind} for num, kind in ((1, "point"), (2, "linestrip")))
SHAPES: dict[str, tuple] = {
    "labelme rectangle and polygon": ((labelme_shape(CAT), labelme_shape(DOG, "polygon")), [CAT, DOG], {}),
    "labelme circle": (({"label": "cat", "points": [[20, 10], [23, 14]], "shape_type": "circle"},), [("cat", 15, 5, 25, 15)]),
    "labelme corners in another order": ((labelme_shape(CAT, points=[[14, 5], [4, 17]]),), [CAT]),
    "labelme without shape_type": (({"label": "cat", "points": corners(CAT)},), [CAT]),
    "labelme numbers as labels": ((labelme_shape((7, *CAT[1:])),), [("7", *CAT[1:])]),
    "labelme mask": ((labelme_mask(np.pad(np.ones((12, 10), np.uint8), 1), [[3, 4], [14, 17]]),), [CAT]),
    "labelme points and lines": ((labelme_shape(CAT), POINT, LINE), [CAT]),
    "cvat box and polygon": ((cvat_box(CAT), cvat_polygon(DOG)), [CAT, DOG], {"is_occluded": (1, 0)}),
    "cvat rotated box": ((cvat_box(("cat", 7, 5, 13, 15), 'rotation="90.0"'),), _TURNED),
    "cvat ellipse": (('<ellipse label="cat" cx="10" cy="10" rx="3" ry="5" rotation="90"/>',), _TURNED),
    "cvat mask": ((CVAT_MASK,), [("cat", 4, 5, 14, 7)]),
    "cvat points, lines and attributes": ((*CVAT_POINTS, cvat_box(CAT, inner='<attribute name="colour">red</attribute>')), [CAT]),
    "label_studio rectangle and polygon": ((percent_rectangle(CAT), percent_polygon(DOG)), [CAT, DOG], {}),
    "label_studio rotated rectangle": ((percent_rectangle(("cat", 10, 5, 16, 15), rotation=90),), [("cat", 0, 5, 10, 11)]),
    "label_studio ellipse": (({**PERCENT_ELLIPSE, "ellipselabels": ["cat"]},), _TURNED),
    "label_studio brush": ((brush(CAT_PIXELS),), [CAT]),
    "label_studio generic labels": ((GENERIC,), [CAT]),
    "label_studio keypoints": (({"x": 1, "y": 2, "width": 0.5, "keypointlabels": ["nose"]}, percent_rectangle(CAT)), [CAT]),
    "label_studio first annotation that is not cancelled": (task_files(task(annotations=CANCELLED)), [CAT]),
    "label_studio JSON-MIN": ({"export.json": json.dumps(MIN_ROWS).encode()}, [CAT]),
    "via rectangle and polygon": ((via_region(CAT), via_region(DOG, "polygon")), [CAT, DOG], {}),
    "via circle": ((via_shape("circle", cx=20, cy=10, r=5),), [("cat", 15, 5, 25, 15)]),
    "via ellipse": ((via_shape("ellipse", cx=10, cy=10, rx=3, ry=5, theta=math.pi / 2),), _TURNED),
    "via points and lines": ((via_region(CAT), *(via_shape(kind) for kind in ("point", "polyline"))), [CAT]),
    "via checkbox": ((via_region(({"cat": True, "dog": False}, *CAT[1:])),), [CAT]),
    "via regions of an old version": (via_files(regions={"0": via_region(CAT)}), [CAT]),
    "via no attributes": (({**via_region(CAT), "region_attributes": {}},), [("object", *CAT[1:])]),
    "kitti flags": ((kitti_line(CAT), DONT_CARE, kitti_line(DOG)), [CAT, DOG], {"occluded": (2, 2), "truncated": (0.25, 0.25)}),
    "kitti scores": ((kitti_line(CAT) + " 0.9",), [CAT]),
    "kitti line ends": ({LABEL_FILE: kitti(kitti_line(CAT)).replace(b"\n", b"\r\n\r\n")}, [CAT]),
    "visdrone boxes": ((visdrone_line(("car", *CAT[1:])), visdrone_line(DOG, 0), visdrone_line(("bus", *DOG[1:]), 9, "1,0,")), [("car", *CAT[1:]), ("bus", *DOG[1:])], {"occlusion": (2, 0), "truncation": (0, 1)}),
    "wider_face boxes": ((wider_line(CAT), wider_line(DOG)), [("face", *CAT[1:]), ("face", *DOG[1:])], {"blur": (1, 1), "occlusion": (2, 2)}),
    "kitti fractions": ((kitti_line(("cat", 4.25, 5.5, 14.75, 17)),), [("cat", 4.25, 5.5, 14.75, 17)]),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_become_boxes(tmp_path, case):
    kind, (content, expected, *flags) = case.split()[0], SHAPES[case]
    path = write_case(tmp_path, kind, content)
    assert guess_source(path).kind.name == kind
    listed = Listing(path, kind, source={"has_masks": "has_masks" in source_classes()[kind].kind.options})
    key = FOLDERS.get(kind, "images/") + "1.png"
    actual = boxes_of(listed)[key]
    assert not listed.letters and [box[0] for box in actual] == [box[0] for box in expected]
    np.testing.assert_allclose([box[1:] for box in actual], [box[1:] for box in expected], atol=1e-6)
    assert all(some.items() <= listed.objects(key).flags.items() for some in flags)


CORNERS = {
    "labelme": (labelme_shape(("cat", 4, 5, 9, 9), "rotation", points=[[6, 4], [10, 8], [8, 10], [4, 6]]), [[6, 4], [10, 8], [8, 10], [4, 6]]),
    "cvat": (cvat_box(("cat", 7, 5, 13, 15), 'rotation="90.0"'), [[15, 7], [15, 13], [5, 13], [5, 7]]),
    "label_studio": (percent_rectangle(("cat", 10, 5, 16, 15), rotation=90), [[10, 5], [10, 11], [0, 11], [0, 5]]),
    "via": (via_region(CAT), corners(CAT)),
}


@pytest.mark.parametrize("kind", CORNERS)
def test_corners_of_rotated_boxes_are_stored(tmp_path, kind):
    shape, expected = CORNERS[kind]
    path, key = write_case(tmp_path, kind, (shape,)), FOLDERS.get(kind, "images/") + "1.png"
    listed = Listing(path, kind, source={"has_corners": True})
    stored = np.array(listed.objects(key).points["corners"])
    np.testing.assert_allclose(stored * ([WIDTH, HEIGHT] if kind == "label_studio" else 1), [expected], atol=1e-9)
    with pytest.raises(UserError, match="--corners"):
        open_kind(path, kind, {"has_corners": True, "labels": ()})


def test_outline_without_four_corners_is_a_dead_letter_with_corners(tmp_path):
    path = write_case(tmp_path, "via", (via_region(CAT), via_shape("circle", cx=20, cy=10, r=5)))
    (letter,) = Listing(path, "via", source={"has_corners": True}).letters.values()
    assert "object 2" in letter.message and "--corners" in letter.message


# Labeled points. In each format, image 1 has the points nose (4, 5) and chin (6, 9), and a box.


def labelme_point(label: str, x: float, y: float) -> dict[str, Any]:
    return {"label": label, "points": [[x, y]], "shape_type": "point"}


def cvat_point(label: str, x: float, y: float) -> str:
    return f'<points label="{label}" points="{x},{y}" occluded="{label == "chin":d}"/>'


def percent_point(label: str, x: float, y: float) -> dict[str, Any]:
    return {"x": 100 * x / WIDTH, "y": 100 * y / HEIGHT, "width": 0.5, "keypointlabels": [label]}


def via_point(label: str, x: float, y: float) -> dict[str, Any]:
    return {"shape_attributes": {"name": "point", "cx": x, "cy": y}, "region_attributes": {"kind": label}}


SKELETON = f'<skeleton label="face">{cvat_point("nose", 4, 5)}{cvat_point("chin", 6, 9)}<points label="ear" points="1,2" outside="1"/></skeleton>'
SEVERAL = '<points label="nose" points="4,5;6,9"/>'
TWO = (("nose", 4, 5), ("chin", 6, 9))
POINTS: dict[str, tuple] = {
    "labelme": (labelme_shape(CAT), *(labelme_point(*point) for point in TWO)),
    "cvat": (cvat_box(CAT), *(cvat_point(*point) for point in TWO)),
    "cvat skeleton": (cvat_box(CAT), SKELETON),
    "label_studio": (percent_rectangle(CAT), *(percent_point(*point) for point in TWO)),
    "via": (via_region(CAT), *(via_point(*point) for point in TWO)),
}


@pytest.mark.parametrize("case", POINTS)
def test_labeled_points_become_keypoints(tmp_path, case):
    kind = case.split()[0]
    path, key = write_case(tmp_path, kind, POINTS[case]), FOLDERS.get(kind, "images/") + "1.png"
    assert any("--label objects --label 'chin,nose:keypoints[2,3]'" in field for field in Listing(path, kind).unused), case
    for text, expected in (
        ("nose,chin:keypoints[2]", [[4, 5], [6, 9]]),
        ("nose,ear,chin:keypoints[3,3]", [[4, 5, 2], [0, 0, 0], [6, 9, 1 if kind == "cvat" else 2]]),
    ):
        for labels in ([text], ["objects", text]):
            columns = parse_labels(labels)
            listed = Listing(path, kind, source={"labels": columns})
            points, size = listed.images[key].values[columns[-1].name]
            np.testing.assert_allclose(points, expected)
            assert size == (None if kind == "via" else (HEIGHT, WIDTH)) and ("objects" in listed.images[key].values) == (len(labels) > 1)
            assert set(listed.reasons.values()) == (set() if "ear" in text else {"bad_keypoints"}) and not listed.unused & {"points"}


def test_points_of_one_label_are_stored_in_their_order(tmp_path):
    path = write_case(tmp_path, "cvat", (SEVERAL,))
    listed = Listing(path, "cvat", source={"labels": parse_labels(["nose:keypoints[2]"])})
    np.testing.assert_array_equal(listed.images["images/1.png"].values["label"].points, [[4, 5], [6, 9]])
    assert len(listed.letters) == 2 and Listing(path, "cvat").unused == {"points nose"}
    twice = Listing(path, "cvat", source={"labels": parse_labels(["nose,chin:keypoints[2,3]"])})
    assert "several points" in twice.letters["annotations.xml:1.png"].message
    for text in ("nose:keypoints", "x1,y1:keypoints"):
        with pytest.raises(UserError, match=r"--label.*keypoints\["):
            Listing(path, "cvat", source={"labels": parse_labels([text])})


@pytest.mark.parametrize("kind", [kind for kind in POINTS if " " not in kind])
def test_label_of_points_that_no_image_has_is_rejected(tmp_path, kind, capsys):
    path = write_case(tmp_path, kind, POINTS[kind])
    command = ["prepare", f"--input={path}", f"--source={kind}", f"--output={tmp_path}/out", "--splits=train=1", "--estimate"]
    for label in ("nose,chn:keypoints[2]", "nose,chn:keypoints[2,3]", "chn:keypoints[1,3]"):
        assert main([*command, "--label=objects", f"--label={label}"]) == 2
        assert "--label=chn: no image has a point with this label. The labels of points are: chin, nose.\n" in capsys.readouterr().err
    assert main([*command, "--label=nose,chin:keypoints[2,3]"]) == 0


def merged_facts(path: str, kind: str, **source: Any) -> ListedFacts:
    """Lists each part with a new source object, and merges the facts about all parts."""
    merged = ListedFacts()
    for part in open_kind(path, kind, source).parts():
        of_part = ListedFacts()
        list(list_part(open_kind(path, kind, source), part, of_part))
        merged.merge(of_part)
    return merged


def test_labels_of_points_are_merged_over_parts(tmp_path):
    files = {f"{name}.xml": cvat(cvat_image(cvat_point(label, 4, 5), name=f"{name}.png")) for name, label in (("1", "nose"), ("2", "chin"))}
    path = write(tmp_path, IMAGES | files)
    assert len(open_kind(path, "cvat").parts()) == 2
    assert merged_facts(path, "cvat", labels=parse_labels(["nose,chin:keypoints[2,3]"])).schema.point_labels == {"nose", "chin"}


@pytest.mark.parametrize("num_points", [9, 60])
def test_advice_to_store_points_is_complete_or_omitted(tmp_path, num_points):
    names = [f"landmark_{number:02d}" for number in range(num_points)]
    path = write_case(tmp_path, "labelme", tuple(labelme_point(name, 4, 5) for name in names))
    (unused,) = merged_facts(path, "labelme").schema.unused_fields.names
    option = f"(stored with --label objects --label '{','.join(names)}:keypoints[{num_points},3]')"
    assert unused.endswith(option) if num_points == 9 else len(unused) <= 100 and "(" not in unused


def test_invalid_points_matter_only_if_they_are_stored(tmp_path):
    path = write_case(tmp_path, "labelme", (labelme_point("", 4, 5), labelme_shape(CAT)))
    listed = Listing(path, "labelme")
    assert boxes_of(listed)["1.png"] == [CAT] and listed.unused == {"points"}
    assert "1.json" in Listing(path, "labelme", source={"labels": parse_labels(["nose:keypoints[1,3]"])}).letters


@pytest.mark.slow
def test_keypoints_of_rotated_photographs_follow_the_size_in_the_annotations(tmp_path):
    """The JSON file states the size of the upright photograph, so its points are not rotated again."""
    photo = PIL.Image.fromarray(np.zeros((WIDTH, HEIGHT, 3), np.uint8))
    photo.getexif()[0x0112] = 6
    written = io.BytesIO()
    photo.save(written, "JPEG", exif=photo.getexif())
    files = {"1.jpg": written.getvalue(), "1.json": labelme([labelme_point(*point) for point in TWO], imagePath="1.jpg")}
    command = ["prepare", f"--input={write(tmp_path / 'in', files)}", f"--output={tmp_path}/out", "--splits=train=1"]
    assert main([*command, "--label=nose,chin:keypoints[2]"]) == 0
    dataset = tf_input.open(tmp_path / "out")
    assert dataset.features["label"].point_names == ("nose", "chin")
    np.testing.assert_allclose(dataset["train"][0]["label"], [[4 / WIDTH, 5 / HEIGHT], [6 / WIDTH, 9 / HEIGHT]], atol=1e-6)


# Invalid and hostile annotations of image 1: (shapes of image 1 or changed files, reason, words of the message).

DEEP = b"[" * 200_000
# A PNG with one pixel, and a header that claims 458,752 x 458,752 pixels.
BOMB = encode(np.ones((1, 1), np.uint8), "PNG").replace(b"\0\0\0\1\0\0\0\1", b"\0\7\0\0\0\7\0\0")
BAD: dict[str, tuple] = {
    "labelme NaN": ((labelme_shape(("cat", 4, 5, float("nan"), 9)),), "bad_box", ["shape 1", "nan"]),
    "labelme huge number": ((labelme_shape(("cat", 4, 5, 10**400, 9)),), "bad_box", ["shape 1"]),
    "labelme digits": ({"1.json": b'{"shapes": [' + b"9" * 5000 + b"]}"}, "bad_json", []),
    "labelme two corners": ((labelme_shape(CAT), {"label": "dog", "points": [[1, 2], [3, 4]], "shape_type": "polygon"},), "bad_box", ["shape 2", "2 points", "3"]),
    "labelme text as a point": ((labelme_shape(CAT, points=[["a", 1], [2, 3]]),), "bad_box", ["'a'"]),
    "labelme empty label": ((labelme_shape(("", *CAT[1:])),), "bad_label", ["shape 1"]),
    "labelme unknown type": ((labelme_shape(CAT, shape_type="cube"),), "bad_annotation", ["cube"]),
    "labelme size": ({"1.json": labelme([], imageHeight=-4)}, "size_mismatch", ["-4"]),
    "labelme mask outside": ((labelme_mask(np.ones((6, 21), np.uint8), [[40, 4], [60, 9]]),), "bad_mask", ["shape 1"]),
    "labelme mask bomb": ((labelme_shape(CAT, shape_type="mask", mask=base64.b64encode(BOMB).decode()),), "bad_mask", []),
    "labelme deep nesting": ({"1.json": DEEP}, "bad_json", []),
    "labelme other JSON": ({"1.json": b"[1, 2]"}, "bad_annotation", ["shapes"]),
    "labelme repeated key": ({"1.json": b'{"shapes": [], "shapes": []}'}, "bad_json", ["shapes"]),
    "labelme not UTF-8": ({"1.json": b'{"shapes": [], "imagePath": "\xff"}'}, "bad_json", []),
    "labelme other image": ({"1.json": labelme([], imagePath="2.png")}, "ambiguous", ["imagePath", "2.png"]),
    "cvat NaN": ((cvat_box(("cat", 1, 2, "nan", 4)),), "bad_box", ["shape 1", "'nan'"]),
    "cvat missing side": (('<box label="cat" xtl="1" ytl="2" xbr="3"/>',), "bad_box", ["ybr"]),
    "cvat infinity": ((cvat_box(CAT), cvat_box(("cat", 1, 2, "1e999", 4)),), "bad_box", ["shape 2"]),
    "cvat negative side": ((cvat_box(("cat", 9, 2, 3, 4)),), "bad_box", ["-6"]),
    "cvat two corners": (('<polygon label="cat" points="1,2;3,4"/>',), "bad_box", ["2 points"]),
    "cvat point of three numbers": (('<polygon label="cat" points="1,2,3;3,4;5,6"/>',), "bad_box", []),
    "cvat without label": (('<box xtl="1" ytl="2" xbr="3" ybr="4"/>',), "bad_label", ["shape 1"]),
    "cvat size": ({"annotations.xml": cvat(cvat_image().replace('"48"', '"wide"'), cvat_image(name="2.png"), cvat_image(name="3.png"))}, "bad_box", ["wide"]),
    "cvat escape": (cvat_files(name="../images/1.png"), "outside", [".."]),
    "cvat missing image": (cvat_files(name="cam/1.png"), "missing", ["cam/1.png"]),
    "cvat without name": (cvat_files(name=""), "bad_annotation", ["name"]),
    "cvat run lengths": (('<mask label="cat" rle="1, 99999" left="0" top="0" width="3" height="3"/>',), "bad_mask", ["100000"]),
    "cvat huge mask": (('<mask label="cat" rle="1" left="0" top="0" width="99999999" height="99999999"/>',), "bad_image", []),
    "label_studio not a number": ((percent_rectangle(CAT, x="a"),), "bad_box", ["region 1", "'a'"]),
    "label_studio infinity": ((percent_rectangle(CAT), percent_rectangle(CAT, x=1e300),), "bad_box", ["region 2"]),
    "label_studio negative side": ((percent_rectangle(CAT, width=-10),), "bad_box", ["-4.8"]),
    "label_studio two corners": (({"points": [[1, 2], [3, 4]], "polygonlabels": ["cat"]},), "bad_box", ["2 points"]),
    "label_studio two classes": ((percent_rectangle(CAT, rectanglelabels=["cat", "dog"]),), "bad_label", ["dog"]),
    "label_studio no class": ((percent_rectangle(CAT, rectanglelabels=[]),), "bad_label", ["region 1"]),
    "label_studio no size": (task_files(task(result(percent_rectangle(CAT), original_width=0))), "size_mismatch", ["original_width"]),
    "label_studio two sizes": (task_files(task(result(percent_rectangle(CAT)), result(percent_rectangle(CAT), original_width=96))), "size_mismatch", ["96"]),
    "label_studio rotated image": (task_files(task(result(percent_rectangle(CAT), image_rotation=90))), "size_mismatch", ["image_rotation"]),
    "label_studio skipped task": (task_files(task(annotations=[{"was_cancelled": True, "result": []}])), "no_annotation", []),
    "label_studio open task": (task_files(task(annotations=[])), "no_annotation", []),
    "label_studio annotations are a number": (task_files(task(annotations=5)), "no_annotation", []),
    "label_studio escape": (task_files(task(image="/data/local-files/?d=../../etc/1.png")), "outside", [".."]),
    "label_studio missing image": (task_files(task(image="s3://bucket/9.png")), "missing", ["9.png"]),
    "label_studio embedded image": (task_files(task(image="data:image/png;base64,AAAA")), "bad_annotation", ["embedded"]),
    "label_studio no image": (task_files({**task(), "data": {"text": "x"}}), "bad_annotation", ["image"]),
    "label_studio task is no object": (task_files([1]), "bad_annotation", ["object"]),
    "label_studio cut brush": ((brush(CAT_PIXELS, rle=encode_brush(CAT_PIXELS)[:-9]),), "bad_mask", ["ends"]),
    "label_studio huge brush": ((brush(CAT_PIXELS, rle=[255] * 60),), "bad_mask", ["4294967295"]),
    "label_studio brush of other numbers": ((brush(CAT_PIXELS, rle=[0, 999]),), "bad_mask", ["bytes"]),
    "label_studio empty brush": ((brush(0 * CAT_PIXELS),), "bad_mask", ["without pixels"]),
    "visdrone columns": ((visdrone_line(CAT), "1,2,3,4,1,1\n"), "bad_annotation", ["object 2", "6 columns"]),
    "visdrone class": ((visdrone_line(CAT, 12),), "bad_label", ["12"]),
    "visdrone NaN": (("nan,1,2,3,1,4,0,0\n",), "bad_box", ["object 1", "nan"]),
    "visdrone negative side": (("1,2,-3,4,1,4,0,0\n",), "bad_box", ["-3"]),
    "visdrone not UTF-8": ({"VisDrone2019-DET-train/annotations/1.txt": b"\xff"}, "not_utf8", ["UTF-8"]),
    "wider_face columns": (("1 2 3 4 0\n",), "bad_annotation", ["box 1", "5 columns"]),
    "wider_face infinity": ((wider_line(CAT), "1e999 2 3 4 0 0 0 0 0 0\n"), "bad_box", ["box 2"]),
    "wider_face attribute": ((wider_line(CAT, "1 0 x 0 2 0"),), "bad_value", ["box 1", "'x'"]),
    "via infinity": ((via_region(CAT), via_region(("cat", 1e300, 2, 3, 4)),), "bad_box", ["region 2"]),
    "via negative side": ((via_region(("cat", 9, 2, 3, 4)),), "bad_box", ["region 1", "-6"]),
    "via missing side": ((via_shape("circle", cx=1, cy=2),), "bad_box", ["r None"]),
    "via negative radius": ((via_shape("circle", cx=1, cy=2, r=-3),), "bad_box", ["-3"]),
    "via two corners": ((via_shape("polygon", all_points_x=[1, 2], all_points_y=[3, 4]),), "bad_box", ["2 points"]),
    "via lists of different lengths": ((via_shape("polygon", all_points_x=[1, 2], all_points_y=[3]),), "bad_box", ["equal length"]),
    "via unknown shape": ((via_shape("star"),), "bad_annotation", ["star"]),
    "via empty class": ((via_region(("", *CAT[1:])),), "bad_label", ["kind"]),
    "via two classes": ((via_region(({"cat": True, "dog": True}, *CAT[1:])),), "bad_label", ["2 values"]),
    "via region is no object": ((7,), "bad_annotation", ["shape_attributes"]),
    "via escape": (via_files(filename="../images/1.png"), "outside", [".."]),
    "via missing image": (via_files(filename="https://host/9.png"), "missing", ["9.png"]),
    "via no file name": (via_files(filename=5), "bad_annotation", ["filename"]),
    "kitti NaN": ((kitti_line(CAT), kitti_line(("cat", float("nan"), 1, 2, 3)),), "bad_box", ["object 2", "nan"]),
    "kitti huge number": ((kitti_line(CAT).replace("4.00", "1e999"),), "bad_box", ["1e999"]),
    "kitti columns": (("cat 0 0 0 1 2 3 4",), "bad_annotation", ["8 columns"]),
    "kitti sides": ((kitti_line(("cat", 9, 1, 2, 3)),), "bad_box", ["-7"]),
    "kitti truncation": ((kitti_line(CAT, "1.5 0 0"),), "bad_annotation", ["1.5"]),
    "kitti occlusion": ((kitti_line(CAT, "0 7 0"),), "bad_annotation", ["7"]),
    "kitti not UTF-8": ({LABEL_FILE: b"\xff"}, "not_utf8", ["UTF-8"]),
    "kitti too large": ({LABEL_FILE: b" " * (5 << 20)}, "bad_annotation", ["too large"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_annotation_rejects_only_its_image(tmp_path, case):
    content, reason, words = BAD[case]
    listed = Listing(write_case(tmp_path, case.split()[0], content), case.split()[0])
    (letter,) = listed.letters.values()
    assert letter.reason == reason and all(word in letter.message for word in words), letter
    assert len(listed.images) == 2


# Files that are invalid as a whole: (content, words of the message).
DTD = '<!DOCTYPE x [<!ENTITY a "1"><!ENTITY b "&a;&a;">]>'
EXPORTS = {kind: next(data for name, data in WRITERS[kind]().items() if "images/" not in name) for kind in LISTED}
INVALID: dict[str, tuple[bytes, list[str]]] = {
    "cvat video": (cvat('<track id="0" label="cat"></track>'), ["CVAT for video", "for images 1.1"]),
    "cvat entities": (cvat(start=DTD), ["DTD"]),
    "cvat cut": (EXPORTS["cvat"][:-30], ["not valid XML"]),
    "cvat encoding": (cvat(start="<?xml version='1.0' encoding='odd'?>"), ["not valid XML"]),
    "cvat deep nesting": (cvat(cvat_image("<a>" * 1000 + "</a>" * 1000)), ["nested"]),
    "cvat other file": (b"<annotation/>", ["CVAT"]),
    "label_studio object": (json.dumps({"task": task()}).encode(), ["JSON list"]),
    "label_studio cut": (EXPORTS["label_studio"][:-2], ["not valid JSON"]),
    "label_studio repeated field": (b'[{"annotations": [], "data": {}, "data": {}}]', ["twice"]),
    "label_studio deep nesting": (b'[{"data": 1, "annotations": ' + DEEP, ["export.json"]),
    "via list": (b'[{"_via_img_metadata": {}}]', ["JSON object"]),
    "via cut": (EXPORTS["via"][:-2], ["not valid JSON"]),
    "via deep nesting": (b'{"_via_img_metadata": {"a": ' + DEEP, ["via_project.json"]),
    "via repeated field": (b'{"_via_img_metadata": {"a": {"filename": "1", "filename": "2"}}}', ["twice"]),
}
FILE_NAMES = {"cvat": "annotations.xml", "label_studio": "export.json", "via": "via_project.json"}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_file_is_named(tmp_path, case):
    kind, (data, words) = case.split()[0], INVALID[case]
    path = write(tmp_path, in_folder(FILE_NAMES[kind], data))
    with pytest.raises(UserError) as caught:
        Listing(path, kind)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def many_objects(kind: str, num: int) -> Files:
    """Returns the annotation file of a format for `num` images with 200 objects each."""
    entries = range(num)
    if kind == "cvat":
        shapes = 200 * cvat_box(CAT, inner='<attribute name="a">1</attribute>')
        return {"annotations.xml": cvat(*(cvat_image(shapes, name=f"{number}.png") for number in entries))}
    if kind == "label_studio":
        regions = 200 * [result(percent_rectangle(CAT))]
        return {"export.json": json.dumps([task(*regions, image=f"{number}.png", number=number) for number in entries]).encode()}
    return {"project.json": via_project({f"{number}": via_entry(*(200 * [via_region(CAT)]), name=f"{number}.png") for number in entries})}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LISTED)
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    peaks = []
    for num in (10, 100):
        path = write(tmp_path / str(num), many_objects(kind, num) | {f"{number}.png": b"x" for number in range(num)})
        source = open_kind(path, kind)
        (part,) = source.parts()
        tracemalloc.start()
        assert sum(isinstance(item, InputRecord) for item in source.list(part)) == num
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20), peaks


@pytest.mark.parametrize("kind", LISTED)
def test_annotation_file_may_not_be_a_link_out_of_the_input(tmp_path, kind):
    path, name = write_one(tmp_path / "in", kind), FILE_NAMES[kind]
    write_files(tmp_path / "secret", {name: (tmp_path / "in" / name).read_bytes()})
    (tmp_path / "in" / name).unlink()
    (tmp_path / "in" / name).symlink_to(tmp_path / "secret" / name)
    with pytest.raises(UserError, match="--follow_links"):
        Listing(path, kind)
    assert len(Listing(path, kind, follow_links=True).images) == 3


# CVAT


def test_cvat_subsets_are_splits_and_select_folders(tmp_path):
    images = [cvat_image(cvat_box(CAT), name="1.png", more=f'subset="{subset}"') for subset in ("Train", "Validation")]
    files = {f"images/{subset}/1.png": b"x" for subset in ("Train", "Validation")}
    path = write(tmp_path, files | {"annotations.xml": cvat(*images)})
    assert {key: image.split for key, image in Listing(path, "cvat").images.items()} == {
        "images/Train/1.png": "train",
        "images/Validation/1.png": "validation",
    }
    assert {image.split for image in Listing(path, "cvat", split_folders=False).images.values()} == {None}


def test_cvat_file_name_and_image_root(tmp_path):
    path = write(tmp_path, {"xml/a.xml": cvat(cvat_image(cvat_box(CAT), name="x/1.png")), "pictures/x/1.png": b"x", "xml/1.png": b"x"})
    listed = Listing(f"{path}/xml/a.xml", "cvat", source={"image_root": f"{path}/pictures"})
    assert list(listed.images) == ["x/1.png"] and not listed.letters
    assert guess_source(f"{path}/xml/a.xml").kind.name == "cvat"


def test_cvat_tags_can_be_labels(tmp_path):
    tags = [["sun"], ["rain"], ["sun", "rain"], []]
    images = [cvat_image(*(f'<tag label="{tag}"/>' for tag in some), name=f"{number}.png") for number, some in enumerate(tags)]
    path = write(tmp_path, {f"images/{number}.png": b"x" for number in range(4)} | {"annotations.xml": cvat(*images)})
    listed = Listing(path, "cvat", source={"labels": (Column("label", ("tags",)),)})
    assert {key: image.label for key, image in listed.images.items()} == {"images/0.png": "sun", "images/1.png": "rain"}
    assert {letter.reason for letter in listed.letters.values()} == {"bad_label"} and len(listed.letters) == 2
    several = Listing(path, "cvat", source={"labels": (Column("label", ("tags",), "multi_label"),)})
    assert [several.images[f"images/{number}.png"].values["label"] for number in range(4)] == [("sun",), ("rain",), ("rain", "sun"), ()]


def test_cvat_reports_fields_that_are_not_used(tmp_path):
    listed = Listing(write_case(tmp_path, "cvat", SHAPES["cvat points, lines and attributes"][0]), "cvat")
    points = "points cat (stored with --label objects --label 'cat:keypoints[1,3]')"
    assert listed.unused == {points, "shapes of type polyline", "attribute colour (stored with --label objects --label colour)"}


def test_cvat_attributes_of_objects_are_stored(tmp_path):
    attribute = '<attribute name="{}">{}</attribute>'
    boxes = [
        cvat_box(CAT, inner=attribute.format("colour", "red") + attribute.format("age", "7")),
        cvat_box(DOG, inner=attribute.format("age", "3")),
    ]
    path = write_case(tmp_path, "cvat", tuple(boxes))
    labels = parse_labels(["objects", "colour", "years=age:integer", "mass=age:float"])
    source = open_kind(path, "cvat", {"labels": labels})
    assert {feature.name: feature.kind for feature in source.features if feature.name in ("objects/colour", "objects/years")} == {
        "objects/colour": "class_label",
        "objects/years": "integer",
    } and source.targets == ("objects",)
    listed = Listing(path, "cvat", source={"labels": labels})
    flags = {"is_occluded": (1, 1), "colour": ("red", "none"), "years": (7, 3), "mass": (7.0, 3.0)}
    assert dict(listed.objects("images/1.png").flags) == flags and not listed.unused and not listed.letters
    for text, words in {"color": "age, colour", "colour:text": "colour:integer", "label=colour": "already", "colour:multi_label": "class"}.items():
        with pytest.raises(UserError, match=f"--label.*{words}"):
            Listing(path, "cvat", source={"labels": parse_labels(["objects", text])})
    (letter,) = Listing(path, "cvat", source={"labels": parse_labels(["objects", "colour:integer"])}).letters.values()
    assert letter.reason == "bad_value" and "'colour'" in letter.message


@pytest.mark.slow
def test_classes_of_attributes_reach_a_verified_batch(tmp_path):
    inner = '<attribute name="colour">{}</attribute>'
    images = [cvat_image(cvat_box(CAT, inner=inner.format(name)), cvat_box(DOG), name=f"{number}.png") for number, name in zip("123", ("red", "blue", "red"))]
    path = write(tmp_path / "in", in_folder("annotations.xml", cvat(*images)))
    command = ["prepare", f"--input={path}", f"--output={tmp_path}/out", "--splits=train=1", "--label=objects", "--label=colour"]
    assert main(command) == 0 and main(["verify", f"{tmp_path}/out", "--decode"]) == 0
    dataset = tf_input.open(tmp_path / "out")
    assert dataset.features["objects/colour"].label_names == ("blue", "none", "red")
    assert {example["key"]: list(example["objects"]["colour"]) for example in dataset["train"]} == {
        f"images/{number}.png": [label, 1] for number, label in zip("123", (2, 0, 2))
    }
    ((_, y),) = dataset.batches("train", batch_size=3, image_size=32).take(1)
    assert sorted(y["colour"].numpy()[:, 0].tolist()) == [0, 2, 2]


OBJECT_FEATURES = {  # format, shapes, options, the feature of objects that must survive a second run
    "float": ("kitti", (kitti_line(CAT), kitti_line(DOG)), [], "truncated"),
    "class": ("cvat", (cvat_box(CAT, inner='<attribute name="colour">red</attribute>'), cvat_box(DOG)), ["--label=objects", "--label=colour"], "colour"),
    "points": ("labelme", (labelme_shape(CAT), labelme_shape(DOG)), ["--corners"], "corners"),
}


@pytest.mark.slow(2)
@pytest.mark.parametrize("case", OBJECT_FEATURES)
def test_features_of_objects_survive_a_second_run(tmp_path, case):
    kind, shapes, options, name = OBJECT_FEATURES[case]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    path = write_case(tmp_path / "in", kind, shapes)
    assert main(["prepare", f"--input={path}", f"--output={first}", "--split_folders=no", "--splits=train=1", *options]) == 0
    assert main(["prepare", f"--input={first}", f"--output={second}"]) == 0
    before, after = (tf_input.open(path) for path in (first, second))
    assert after.features[f"objects/{name}"] == before.features[f"objects/{name}"]
    values = [{example["key"]: example["objects"][name] for example in dataset["train"]} for dataset in (before, after)]
    assert values[0].keys() == values[1].keys() and any(len(value) == 2 for value in values[0].values())
    for key, value in values[0].items():
        np.testing.assert_array_equal(value, values[1][key])


def test_classes_of_images_that_are_not_stored_are_reported(tmp_path):
    region = result(percent_rectangle(CAT))
    row = {"id": 1, "image": "1.png", "annotator": 1, "weather": "sun", "rating": 4, "empty": None, "kind": [{**region["value"], **SIZE}]}
    exports = {
        "cvat": ("1.xml", cvat(cvat_image(cvat_box(CAT), '<tag label="sun"/>'))),
        "label_studio": ("1.json", json.dumps([task(region, choices("sun"), image="1.png")]).encode()),
        "label_studio JSON-MIN": ("1.json", json.dumps([row]).encode()),
        "labelme": ("1.json", labelme([labelme_shape(CAT)], flags={"sun": True})),
    }
    for case, (name, data) in exports.items():
        path, source = write(tmp_path / case, {"1.png": b"x", name: data}), case.partition(" ")[0]
        field = {"cvat": "tags", "labelme": "flags"}.get(source, "weather")
        unused = Listing(path, source).unused
        (advice,) = unused - {"rating"}
        assert advice.startswith(f"{field} ") and f"--label objects --label {field}:multi_label" in advice, case
        assert ("rating" in unused) == ("MIN" in case), case
        columns = (Column("objects", ("objects",)), Column(field, (field,), "multi_label"))
        listed = Listing(path, source, source={"labels": columns})
        assert listed.images["1.png"].values[field] == ("sun",) and listed.unused <= {"rating"} and not listed.letters, case
        assert Listing(path, source, source={"labels": ()}).unused <= {"rating"}, case


# Label Studio


@pytest.mark.parametrize("seed", range(6))
def test_label_studio_brush_is_decoded_exactly(seed):
    random = np.random.default_rng(seed)
    height, width = random.integers(1, 40, 2)
    pixels = (random.random((height, width)) < (0, 0.5, 0.03, 0.97, 0.5, 1)[seed]).astype(np.uint8)
    sizes = ((3, 4, 8, 16), (1, 2, 3, 5))[seed % 2]
    np.testing.assert_array_equal(decode_brush(encode_brush(pixels, sizes), height, width), pixels)


NAMES = {
    "/data/upload/3/0a1b2c3d-1.png": "1.png",
    "/data/upload/3/0a1b2c3d-2.png": "0a1b2c3d-2.png",
    "/data/local-files/?d=a%20b/1.png": "a b/1.png",
    "s3://bucket/x/1.png": "x/1.png",
    "https://host/x%20y/1.png?a=b#c": "1.png",
    "C:\\me\\1.png": "1.png",
}


@pytest.mark.parametrize("path", NAMES)
def test_label_studio_images_are_found_by_name(tmp_path, path):
    expected = NAMES[path]
    files = {f"pictures/{expected}": b"x", "export.json": json.dumps([task(image=path)]).encode()}
    listed = Listing(f"{write(tmp_path, files)}/export.json", "label_studio", source={"image_root": f"{tmp_path}/pictures"})
    assert list(listed.images) == [expected] and not listed.letters


def test_label_studio_reports_parts_that_are_not_used(tmp_path):
    cancelled, keypoints = (SHAPES[f"label_studio {case}"][0] for case in ("first annotation that is not cancelled", "keypoints"))
    (unused,) = Listing(write_case(tmp_path, "label_studio", keypoints), "label_studio").unused
    assert "'nose:keypoints[1,3]'" in unused
    noted = Listing(write_case(tmp_path, "label_studio", cancelled), "label_studio").noted
    assert list(noted.values()) == [1] and "several annotations" in next(iter(noted))


def choices(*names: str, **fields: Any) -> dict[str, Any]:
    return result({"choices": names}, **{"from_name": "weather", **fields})


def test_label_studio_choices_are_labels(tmp_path):
    images = {f"{number}.png": b"x" for number in range(3)}
    cases = {
        "one": ([["sun"], ["rain"], ["sun"]], {"labels": None}, ["sun", "rain", "sun"]),
        "several": ([["sun"], ["rain", "sun"], []], {"labels": None}, [("sun",), ("rain", "sun"), ()]),
        "named": ([["sun"], ["rain"], ["sun"]], {"labels": (Column("label", ("weather",), "multi_label"),)}, [("sun",), ("rain",), ("sun",)]),
    }
    for case, (named, source, expected) in cases.items():
        tasks = [task(*([choices(*names)] if names else []), image=f"{number}.png", number=number) for number, names in enumerate(named)]
        rows = [{"id": number, "image": f"{number}.png", "weather": names[0] if len(names) == 1 else {"choices": names}, "annotator": 1} for number, names in enumerate(named)]
        for form, content in (("JSON", tasks), ("JSON-MIN", rows)):
            path = write(tmp_path / case / form, images | {"export.json": json.dumps(content).encode()})
            listed = Listing(path, "label_studio", source=source)
            assert not listed.letters
            actual = [image.label or image.values["label"] for _, image in sorted(listed.images.items())]
            assert actual == expected, (case, form)


def test_label_studio_asks_for_one_of_several_choices(tmp_path):
    content = [task(choices("sun"), choices("cat", from_name="animal"), image="1.png")]
    path = write(tmp_path, {"1.png": b"x", "export.json": json.dumps(content).encode()})
    with pytest.raises(UserError, match="--label.*animal, weather"):
        Listing(path, "label_studio")


# VGG Image Annotator


@pytest.mark.parametrize("form", ["export.json", "export.csv", "annotations/export.json"])
def test_via_exports_are_read(tmp_path, form):
    entries = via_entries(via_region(CAT), via_region(DOG, "polygon"))
    data = via_csv(entries) if form.endswith(".csv") else json.dumps(entries).encode()
    path = write(tmp_path, in_folder(form, data))
    for place in (path, *([f"{path}/{form}"] if "/" not in form else [])):
        assert guess_source(place).kind.name == "via"
        listed = Listing(place, "via")
        assert boxes_of(listed) == {"images/1.png": [CAT, DOG], "images/2.png": [], "images/3.png": []} and not listed.letters


def test_via_csv_with_invalid_json_is_a_dead_letter(tmp_path):
    data = via_csv(via_entries(via_region(CAT))).replace(b'{""name"": ""rect"", ""x"": 4', b'{""name"": rect"", ""x"": 4')
    listed = Listing(write(tmp_path, in_folder("export.csv", data)), "via")
    assert [letter.reason for letter in listed.letters.values()] == ["bad_json"] and len(listed.images) == 2


def test_via_split_folders_give_splits(tmp_path):
    files = {f"{split}/1.png": b"x" for split in ("train", "val")}
    files |= {f"{split}/via_region_data.json": json.dumps({"1": via_entry(via_region(CAT))}).encode() for split in ("train", "val")}
    path = write(tmp_path, files)
    assert guess_source(path).kind.name == "via"
    listed = Listing(path, "via")
    assert {key: image.split for key, image in listed.images.items()} == {"train/1.png": "train", "val/1.png": "validation"}


def test_via_asks_for_one_of_several_attributes(tmp_path):
    regions = via_region(CAT, colour="red"), via_region(("dog", *CAT[1:]), colour="blue")
    path = write_case(tmp_path, "via", regions)
    with pytest.raises(UserError, match="--label.*colour, kind"):
        Listing(path, "via")
    listed = Listing(path, "via", source={"labels": (Column("label", ("colour",)),)})
    assert [box[0] for box in boxes_of(listed)["images/1.png"]] == ["red", "blue"] and listed.unused == {"region attribute kind"}
    with pytest.raises(UserError, match="--label=shape.*colour, kind, objects"):
        Listing(path, "via", source={"labels": (Column("label", ("shape",)),)})


def test_via_file_attributes_can_be_labels(tmp_path):
    entries = {name: via_entry(name=f"{name}.png", weather=weather) for name, weather in zip("123", ("sun", "rain", {"sun": True, "fog": True}))}
    path = write(tmp_path, {f"{name}.png": b"x" for name in "123"} | {"p.json": via_project(entries)})
    listed = Listing(path, "via")
    assert {key: image.label for key, image in listed.images.items()} == {"1.png": "sun", "2.png": "rain"}
    assert [letter.reason for letter in listed.letters.values()] == ["bad_label"]
    several = Listing(path, "via", source={"labels": (Column("label", ("weather",), "multi_label"),)})
    assert several.images["3.png"].values == {"label": ("fog", "sun")}


# KITTI


def test_kitti_counts_regions_and_images_that_are_left_out(tmp_path):
    listed = Listing(write_case(tmp_path, "kitti", (DONT_CARE, kitti_line(CAT))), "kitti")
    assert [num for warning, num in listed.noted.items() if "DontCare" in warning] == [3] and listed.num_ignored == 1
    assert {image.split for image in listed.images.values()} == {"train"}
    assert listed.unused == {"alpha", "dimensions", "location", "rotation_y"}


@pytest.mark.parametrize("images, labels", [("image_2", "label_2"), ("images", "labels")])
def test_kitti_folders_without_training(tmp_path, images, labels):
    path = write(tmp_path, {f"{images}/1.png": b"x", f"{labels}/1.txt": kitti(kitti_line(CAT)), f"{images}/2.png": b"x", f"{labels}/2.txt": b""})
    assert guess_source(path).kind.name == "kitti"
    listed = Listing(path, "kitti")
    assert boxes_of(listed) == {f"{images}/1.png": [CAT], f"{images}/2.png": []}
    assert {image.split for image in listed.images.values()} == {None}


@pytest.mark.parametrize("folder", ["training/", ""])
def test_kitti_lists_give_splits(tmp_path, folder):
    """`test.txt` lists images in the folder `testing` if a folder `training` exists."""
    files = {f"{folder}image_2/{name}.png": b"x" for name in "1234"} | {f"{folder}label_2/{name}.txt": kitti(kitti_line(CAT)) for name in "1234"}
    files |= {f"ImageSets/{name}.txt": names for name, names in {"train": b"1\n", "val": b"2\n", "trainval": b"1\n2\n", "test": b"3\n"}.items()}
    path = write(tmp_path, files)
    expected = {f"{folder}image_2/1.png": "train", f"{folder}image_2/2.png": "validation"} | ({} if folder else {"image_2/3.png": "test"})
    listed = Listing(path, "kitti")
    assert listed.splits == expected and not listed.letters and listed.num_ignored == (4 if folder else 2)
    assert set(Listing(path, "kitti", split_folders=False).splits.values()) == {None}


# VisDrone and WIDER FACE


def test_visdrone_folders_give_splits(tmp_path):
    files = {f"VisDrone2019-DET-{split}/{name}": data for split in ("train", "val", "test-dev") for name, data in (("images/1.jpg", b"x"), ("annotations/1.txt", visdrone_line(CAT).encode()))}
    path = write(tmp_path, files)
    assert guess_source(path).kind.name == "visdrone"
    listed = Listing(path, "visdrone")
    assert [image.split for _, image in sorted(listed.images.items())] == ["test", "train", "validation"]
    assert open_kind(path, "visdrone").label_names()["objects/label"][:4] == ("pedestrian", "people", "bicycle", "car")


def test_wider_face_files_give_splits(tmp_path):
    faces = "0--Parade/{0}.jpg\n1\n" + wider_line(CAT)
    files = {f"wider_face_split/wider_face_{split}_bbx_gt.txt": faces.format(split).encode() for split in ("train", "val")}
    files |= {f"WIDER_{split}/images/0--Parade/{split}.jpg": b"x" for split in ("train", "val", "test")} | {"wider_face_split/wider_face_test_filelist.txt": b"0--Parade/test.jpg\n"}
    path = write(tmp_path, files)
    assert guess_source(path).kind.name == "wider_face"
    assert sorted(image.split for image in Listing(path, "wider_face").images.values()) == ["train", "validation"]
    single = Listing(f"{path}/wider_face_split/wider_face_val_bbx_gt.txt", "wider_face")
    assert list(single.images) == ["WIDER_val/images/0--Parade/val.jpg"] and not single.letters


@pytest.mark.parametrize("text", ["a/1.jpg\n1\n1 2 3 4 0 0 0 0 0 0\nb/2.jpg\nx\n", "a/1.jpg\n", "a/1.jpg\n9999999\n"])
def test_wider_face_file_without_a_number_of_boxes_is_rejected(tmp_path, text):
    path = write(tmp_path, {"wider_face_split/wider_face_train_bbx_gt.txt": text.encode(), "WIDER_train/1.jpg": b"x"})
    with pytest.raises(UserError, match="wider_face_train_bbx_gt.txt.*number of boxes"):
        Listing(path, "wider_face")


# LabelMe


def test_labelme_finds_images_and_reports_outdated_names(tmp_path):
    layouts = {
        "json folder": ({"json/1.json": labelme([labelme_shape(CAT)], imagePath="..\\images\\1.png"), "images/1.png": b"x"}, "images/1.png"),
        "other computer": ({"1.json": labelme([], imagePath="C:\\me\\old.png"), "1.png": b"x"}, "1.png"),
        "outside": ({"1.json": labelme([], imagePath="../../../etc/passwd"), "1.png": b"x"}, "1.png"),
        "other name": ({"a.json": labelme([], imagePath="x/1.png"), "x/1.png": b"x"}, "x/1.png"),
    }
    for case, (files, expected) in layouts.items():
        listed = Listing(write(tmp_path / case, files), "labelme")
        assert list(listed.images) == [expected] and not listed.letters, case
        assert bool(listed.noted) == (case in ("other computer", "outside")), case


def test_labelme_split_folders_give_splits(tmp_path):
    files = {f"{split}/{name}": data for split in ("train", "val") for name, data in labelme_files(labelme_shape(CAT)).items()}
    path = write(tmp_path, files)
    assert guess_source(path).kind.name == "labelme"
    assert {image.split for image in Listing(path, "labelme").images.values()} == {"train", "validation"}


def test_labelme_image_without_annotations_is_a_dead_letter(tmp_path):
    listed = Listing(write(tmp_path, {"1.json": labelme([]), "1.png": b"x", "2.png": b"x"}), "labelme")
    assert {path: letter.reason for path, letter in listed.letters.items()} == {"2.png": "no_annotation"}


@pytest.mark.slow
def test_labelme_embedded_images_are_read(tmp_path):
    files = {f"{name}.json": labelme([labelme_shape(CAT)], imageData=base64.b64encode(IMAGES[f"{name}.png"]).decode()) for name in "123"}
    files["4.json"] = labelme([labelme_shape(CAT)], imageData="AAA")
    path = write(tmp_path / "in", files)
    assert main(["prepare", f"--input={path}", f"--output={tmp_path}/out", "--splits=train=1", "--max_bad_fraction=0.5"]) == 0
    examples = {example["key"]: example for example in tf_input.open(tmp_path / "out")["train"]}
    assert set(examples) == {"1.json", "2.json", "3.json"}
    (letter,) = map(json.loads, (tmp_path / "out/dead_letters.jsonl").read_text().splitlines())
    assert letter["path"] == "4.json" and "base64" in letter["message"]
    listed = Listing(path, "labelme", spool=tmp_path / "spool")
    assert all(image.spool for image in listed.images.values())


def test_labelme_flags_can_be_labels(tmp_path):
    flags = [{"sun": True, "rain": False}, {"sun": False, "rain": True}, {"sun": True, "rain": True}]
    path = write(tmp_path, {f"{number}.json": labelme([], flags=item, imagePath=f"{number}.png") for number, item in enumerate(flags)} | {f"{number}.png": b"x" for number in range(3)})
    listed = Listing(path, "labelme", source={"labels": (Column("label", ("flags",)),)})
    assert {key: image.label for key, image in listed.images.items()} == {"0.png": "sun", "1.png": "rain"}
    assert "flags:multi_label" in listed.letters["2.json"].message
    several = Listing(path, "labelme", source={"labels": (Column("label", ("flags",), "multi_label"),)})
    assert several.images["2.png"].values == {"label": ("rain", "sun")}
    with pytest.raises(UserError, match="flags, objects, none"):
        Listing(path, "labelme", source={"labels": (Column("label", ("flag",)),)})
