"""Tests boxes and masks of images that are rotated by EXIF, with `--drawn_on` and the image size in the annotations."""

import json
import pathlib

import numpy as np
import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import encode, exif, write_files

FILE_SIZE = (48, 32)  # width and height; the upright image is 32 x 48
UPRIGHT_BOX = (4, 20, 12, 30)  # xmin, ymin, xmax, ymax in the upright image
FILE_BOX = (20, 20, 30, 28)  # the same object in the file
EXPECTED_BOX = (20 / 48, 4 / 32, 30 / 48, 12 / 32)


def write_pictures(root: pathlib.Path, num: int = 2) -> None:
    """Writes pictures whose red object has the box `UPRIGHT_BOX` after EXIF rotation, and an upright picture."""
    xmin, ymin, xmax, ymax = FILE_BOX
    pixels = np.full((32, 48, 3), 255, np.uint8)
    pixels[ymin:ymax, xmin:xmax] = (255, 0, 0)
    upright = np.rot90(pixels, -1)
    files = {f"{number}.png": encode(pixels, "PNG", exif=exif(6)) for number in range(num)}
    write_files(root, files | {"upright.png": encode(np.ascontiguousarray(upright), "PNG")})


def box_of(name: str, drawn_on: str) -> tuple[int, ...]:
    return FILE_BOX if drawn_on == "file" and name != "upright" else UPRIGHT_BOX


def size_of(name: str, stated: str) -> tuple[int, int]:
    return FILE_SIZE if stated == "file" and name != "upright" else FILE_SIZE[::-1]


NAMES = ("0", "1", "upright")


def write_coco(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    images, annotations = [], []
    for number, name in enumerate(NAMES):
        width, height = size_of(name, stated)
        xmin, ymin, xmax, ymax = box_of(name, drawn_on)
        images.append({"id": number, "file_name": f"{name}.png", "width": width, "height": height})
        outline = [[xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]]
        box = [xmin, ymin, xmax - xmin, ymax - ymin]
        annotations.append(
            {"image_id": number, "category_id": 1, "bbox": box, "segmentation": outline, "iscrowd": None}
        )
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "leaf"}]}
    (root / "in.json").write_text(json.dumps(content))
    return [f"--input={root}/in.json", "--masks"]


def write_voc(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    for name in NAMES:
        width, height = size_of(name, stated)
        sides = "".join(
            f"<{tag}>{side}</{tag}>" for tag, side in zip(("xmin", "ymin", "xmax", "ymax"), box_of(name, drawn_on))
        )
        size = f"<size><width>{width}</width><height>{height}</height></size>"
        (root / f"{name}.xml").write_text(
            f"<annotation>{size}<object><name>leaf</name><bndbox>{sides}</bndbox></object></annotation>"
        )
    return [f"--input={root}"]


def write_table(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    rows = []
    for name in NAMES:
        xmin, ymin, xmax, ymax = box_of(name, drawn_on)
        objects = {"bbox": [[xmin, ymin, xmax - xmin, ymax - ymin]], "category": ["leaf"]}
        rows.append(json.dumps({"file_name": f"{name}.png", "objects": objects}))
    (root / "in.jsonl").write_text("\n".join(rows))
    return [f"--input={root}/in.jsonl"]


def write_row_boxes(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    rows = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
    rows += [",".join(map(str, (f"{name}.png", *size_of(name, stated), "leaf", *box_of(name, drawn_on)))) for name in NAMES]
    (root / "in.csv").write_text("\n".join(rows))
    return [f"--input={root}/in.csv"]


def write_labelme(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    for name in NAMES:
        width, height = size_of(name, stated)
        xmin, ymin, xmax, ymax = box_of(name, drawn_on)
        shape = {"label": "leaf", "shape_type": "rectangle", "points": [[xmin, ymin], [xmax, ymax]]}
        content = {"shapes": [shape], "imagePath": f"{name}.png", "imageWidth": width, "imageHeight": height}
        (root / f"{name}.json").write_text(json.dumps(content))
    return [f"--input={root}", "--masks"]


def write_cvat(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    images = []
    for name in NAMES:
        width, height = size_of(name, stated)
        sides = " ".join(f'{tag}="{side}"' for tag, side in zip(("xtl", "ytl", "xbr", "ybr"), box_of(name, drawn_on)))
        images.append(f'<image name="{name}.png" width="{width}" height="{height}"><box label="leaf" {sides}/></image>')
    (root / "in.xml").write_text(f"<annotations>{''.join(images)}</annotations>")
    return [f"--input={root}/in.xml", "--masks"]


def write_label_studio(root: pathlib.Path, drawn_on: str, stated: str) -> list[str]:
    tasks = []
    for name in NAMES:
        width, height = size_of(name, stated)
        xmin, ymin, xmax, ymax = box_of(name, drawn_on)
        real_width, real_height = FILE_SIZE if box_of(name, drawn_on) == FILE_BOX else FILE_SIZE[::-1]
        sides = {"x": xmin / real_width, "y": ymin / real_height, "width": (xmax - xmin) / real_width, "height": (ymax - ymin) / real_height}
        value = {**{side: 100 * share for side, share in sides.items()}, "rectanglelabels": ["leaf"]}
        result = {"type": "rectanglelabels", "value": value, "original_width": width, "original_height": height}
        tasks.append({"data": {"image": f"{name}.png"}, "annotations": [{"result": [result]}]})
    (root / "in.json").write_text(json.dumps(tasks))
    return [f"--input={root}/in.json", "--masks"]


SOURCES = {
    "coco": write_coco,
    "voc": write_voc,
    "table": write_table,
    "table of boxes": write_row_boxes,
    "labelme": write_labelme,
    "cvat": write_cvat,
    "label_studio": write_label_studio,
}


@pytest.mark.slow(8)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "drawn_on, stated, option, num_reported",
    [
        ("upright", "file", "upright", 0),  # as exported by Label Studio
        ("file", "upright", "file", 0),
        ("file", "file", None, 2),
        ("upright", "upright", None, 0),
    ],
)
def test_boxes_and_masks_match_the_upright_image(tmp_path, capfd, source, drawn_on, stated, option, num_reported):
    if source == "table" and option is None and drawn_on == "upright":
        pytest.skip("a table has no image sizes")
    write_pictures(tmp_path / "in")
    options = SOURCES[source](tmp_path / "in", drawn_on, stated) + ([f"--drawn_on={option}"] if option else [])
    assert main(["prepare", f"--source={source.split()[0]}", *options, f"--output={tmp_path}/out", "--splits=train=1"]) == 0
    warnings = [line for line in capfd.readouterr().err.splitlines() if "--drawn_on" in line]
    assert [f": {num_reported}. " in line for line in warnings] == [True] * bool(num_reported)
    examples = list(tf_input.open(tmp_path / "out")["train"])
    assert len(examples) == 3
    for example in examples:
        np.testing.assert_allclose(example["objects"]["bbox"], [EXPECTED_BOX], atol=1e-6, err_msg=str(example["key"]))
        if "mask" in example:  # the mask is drawn from the polygons
            is_red = example["image"][..., 1] == 0
            np.testing.assert_array_equal(example["mask"][..., 0] == 1, is_red)
