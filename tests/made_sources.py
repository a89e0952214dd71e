"""Writes the same images in every source format, and provides the features that `prepare` should write."""

import csv
import gzip
import io
import json
import pathlib
import re
import tarfile
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines.__main__ import main
from made_arrays import idx_file
from made_images import encode, write_files
from made_records import example, write_records
from prepared import make_once, picture

NUM = 20
SIDE = 16
PICTURES = [picture(seed, (SIDE, SIDE)) for seed in range(NUM)]
PNGS = [encode(pixels, "PNG") for pixels in PICTURES]
GREYS = [pixels[..., 0] for pixels in PICTURES]
# A second image for each example, of another size.
RIGHTS = [picture(NUM + seed, (SIDE - 4, SIDE + seed % 5)) for seed in range(NUM)]
CLASSES = ("ant", "bee", "cow")
# Fields of each image as a table row.
ROWS = [
    {
        "file_name": f"pictures/{index:02d}.png",
        "class": CLASSES[index % 3],
        "number": index % 3,
        "tags": [name for class_index, name in enumerate(CLASSES) if index >> class_index & 1],
        "weather": ("sun", "rain")[index % 2],
        "ground": ("mud", "sand", "snow")[index % 3],
        "age": index / 8,
        "x": index / 4,
        "y": -index / 2,
        "count": index * 1000,
        "city": f"K\u00f6ln <{index}>, \"old\"\nport",
        "weight": 0.5 + index % 2,
        "patient": f"p{index // 4}",
        "where": ("train", "val")[index % 5 == 0],
        "mask_path": f"masks/{index:02d}.png",
        "heat_path": f"heat/{index:02d}.npy",
        "right_path": f"right/{index:02d}.png",
        **{name: int(bool(index >> class_index & 1)) for class_index, name in enumerate(CLASSES)},
    }
    for index in range(NUM)
]
MASKS = [np.where(pixels[..., 1] > 128, np.uint8(index), np.uint8(255)) for index, pixels in enumerate(PICTURES)]
HEATS = [np.full((4, 4, 2), index, np.float32) + np.arange(32, dtype=np.float32).reshape(4, 4, 2) for index in range(NUM)]
# Boxes in pixels: (ymin, xmin, ymax, xmax, class). Some images have none.
OBJECTS = [[(index % 8, 2, 8 + index % 8, 4 + k, CLASSES[k]) for k in range(index % 4 % 3)] for index in range(NUM)]

Values = Mapping[str, Any]


class Case(NamedTuple):
    """A source format with a task.
    Attributes:
        write: Function that writes the source into a directory, and returns the path of --input below it.
        options: Options of `recordmill prepare`.
        expected: Function from the index of an image to the expected features of its example, with class labels by name.
        targets: Names of the target features.
        grey: Whether the images are gray.
        has_splits: Whether the source has splits.
    """

    write: Callable[[pathlib.Path], str]
    options: Sequence[str]
    expected: Callable[[int], Values]
    targets: tuple[str, ...] = ("label",)
    grey: bool = False
    has_splits: bool = False

    @property
    def command(self) -> list[str]:
        """Returns the options of `prepare` for this case, with two splits and several shards."""
        splits = [] if self.has_splits else ["--splits=train=0.5,test=0.5"]
        return [*self.options, *splits, "--name=made", "--num_shards=5"]


class MadeCase(NamedTuple):
    """The paths of the folder, the source and the dataset of a test case. Tests must not change the files."""

    folder: pathlib.Path
    source: pathlib.Path
    output: pathlib.Path


def made_case(tmp_path_factory: pytest.TempPathFactory, name: str) -> MadeCase:
    """Prepares the dataset of a test case once for all worker processes of a test run and returns the case."""

    def make(root: pathlib.Path) -> pathlib.Path:
        source = root / "in" / CASES[name].write(root / "in")
        assert main(["prepare", "--input", str(source), "--output", str(root / "out"), *CASES[name].command]) == 0
        return source

    root_name = re.sub(r"\W+", "-", name)
    source = make_once(tmp_path_factory, root_name, make)
    root = next(parent for parent in (source, *source.parents) if parent.name == root_name)
    return MadeCase(root / "in", source, root / "out")


def npy(array: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def write_pictures(root: pathlib.Path) -> None:
    write_files(root, {row["file_name"]: data for row, data in zip(ROWS, PNGS)})
    write_files(root, {row["mask_path"]: encode(mask, "PNG") for row, mask in zip(ROWS, MASKS)})
    write_files(root, {row["heat_path"]: npy(heat) for row, heat in zip(ROWS, HEATS)})
    write_files(root, {row["right_path"]: encode(right, "PNG") for row, right in zip(ROWS, RIGHTS)})


def plain(row: Values) -> dict:
    """Returns a table row in which each list is joined into one string, as in a CSV file."""
    return {name: "|".join(value) if isinstance(value, list) else value for name, value in row.items()}


def write_csv(root: pathlib.Path) -> str:
    write_pictures(root)
    with open(root / "rows.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(map(plain, ROWS))
    return "rows.csv"


def write_jsonl(root: pathlib.Path) -> str:
    write_pictures(root)
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return "rows.jsonl"


def write_parquet(root: pathlib.Path) -> str:
    write_pictures(root)
    pq.write_table(pa.Table.from_pylist(ROWS), root / "rows.parquet", row_group_size=7)
    return "rows.parquet"


def write_embedded(root: pathlib.Path) -> str:
    """Writes a Parquet file with images in the same form as Hugging Face Datasets."""
    root.mkdir(parents=True)
    images = [{"bytes": data, "path": f"{index}.png"} for index, data in enumerate(PNGS)]
    rights = [encode(pixels, "PNG") for pixels in RIGHTS]  # images can also be stored as plain bytes
    pq.write_table(pa.table({"image": images, "label": [row["class"] for row in ROWS], "right": rights}), root / "train.parquet")
    return "train.parquet"


def write_hugging_face(root: pathlib.Path) -> str:
    """Writes split folders with images and metadata in the ImageFolder format of Hugging Face."""
    for split in ("train", "test"):
        rows = [(index, row) for index, row in enumerate(ROWS) if (index % 5 == 0) == (split == "test")]
        write_files(root / split, {f"{index}.png": PNGS[index] for index, _ in rows})
        lines = [json.dumps({"file_name": f"{index}.png", "label": row["class"]}) for index, row in rows]
        (root / split / "metadata.jsonl").write_text("\n".join(lines))
    return ""


def write_text(line: Callable[[Values], str]) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_pictures(root)
        (root / "list.txt").write_text("a header\n# a comment\n" + "".join(line(row) + "\n" for row in ROWS))
        return "list.txt"

    return write


def write_voc(root: pathlib.Path) -> str:
    for index, objects in enumerate(OBJECTS):
        boxes = "".join(
            f"<object><name>{name}</name><difficult>{index % 2}</difficult><bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin>"
            f"<xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>"
            for ymin, xmin, ymax, xmax, name in objects
        )
        size = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
        xml = f"<annotation><filename>{index:02d}.png</filename>{size}{boxes}</annotation>"
        write_files(root, {f"Annotations/{index:02d}.xml": xml.encode(), f"JPEGImages/{index:02d}.png": PNGS[index]})
    return ""


def write_yolo(root: pathlib.Path) -> str:
    write_files(root, {"data.yaml": f"names: [{', '.join(CLASSES)}]\ntrain: images\nval: images\n".encode()})
    for index, objects in enumerate(OBJECTS):
        lines = [
            f"{CLASSES.index(name)} {(xmin + xmax) / 2 / SIDE} {(ymin + ymax) / 2 / SIDE} {(xmax - xmin) / SIDE} {(ymax - ymin) / SIDE}"
            for ymin, xmin, ymax, xmax, name in objects
        ]
        write_files(root, {f"labels/{index:02d}.txt": "\n".join(lines).encode(), f"images/{index:02d}.png": PNGS[index]})
    return ""


def write_labelme(root: pathlib.Path) -> str:
    for index, objects in enumerate(OBJECTS):
        shapes = [
            {"label": name, "points": [[xmin, ymin], [xmax, ymax]], "shape_type": "rectangle"} for ymin, xmin, ymax, xmax, name in objects
        ]
        fields = {"shapes": shapes, "imagePath": f"{index:02d}.png", "imageHeight": SIDE, "imageWidth": SIDE}
        write_files(root, {f"{index:02d}.json": json.dumps(fields).encode(), f"{index:02d}.png": PNGS[index]})
    return ""


def write_cvat(root: pathlib.Path) -> str:
    write_files(root, {f"images/{index:02d}.png": data for index, data in enumerate(PNGS)})
    boxes = [
        "".join(f'<box label="{name}" xtl="{xmin}" ytl="{ymin}" xbr="{xmax}" ybr="{ymax}"/>' for ymin, xmin, ymax, xmax, name in objects)
        for objects in OBJECTS
    ]
    images = "".join(f'<image id="{i}" name="{i:02d}.png" width="{SIDE}" height="{SIDE}">{some}</image>' for i, some in enumerate(boxes))
    (root / "annotations.xml").write_text(f"<annotations><version>1.1</version>{images}</annotations>")
    return ""


def write_label_studio(root: pathlib.Path) -> str:
    write_files(root, {f"{index:02d}.png": data for index, data in enumerate(PNGS)})
    tasks = []
    for index, objects in enumerate(OBJECTS):
        results = [
            {
                "type": "rectanglelabels",
                **{"from_name": "box", "to_name": "image", "original_width": SIDE, "original_height": SIDE},
                "value": {
                    **{"x": 100 * xmin / SIDE, "y": 100 * ymin / SIDE, "rotation": 0, "rectanglelabels": [name]},
                    **{"width": 100 * (xmax - xmin) / SIDE, "height": 100 * (ymax - ymin) / SIDE},
                },
            }
            for ymin, xmin, ymax, xmax, name in objects
        ]
        tasks.append({"id": index, "data": {"image": f"/data/upload/1/{index:02d}.png"}, "annotations": [{"id": index, "result": results}]})
    (root / "export.json").write_text(json.dumps(tasks))
    return "export.json"


def write_via(root: pathlib.Path) -> str:
    write_files(root, {f"{index:02d}.png": data for index, data in enumerate(PNGS)})
    entries = {}
    for index, objects in enumerate(OBJECTS):
        regions = [
            {
                "shape_attributes": {"name": "rect", "x": xmin, "y": ymin, "width": xmax - xmin, "height": ymax - ymin},
                "region_attributes": {"animal": name},
            }
            for ymin, xmin, ymax, xmax, name in objects
        ]
        name = f"{index:02d}.png"
        entries[f"{name}{len(PNGS[index])}"] = {"filename": name, "size": len(PNGS[index]), "regions": regions, "file_attributes": {}}
    (root / "via.json").write_text(json.dumps(entries))
    return "via.json"


def write_kitti(root: pathlib.Path) -> str:
    for index, objects in enumerate(OBJECTS):
        lines = [f"{name} 0.00 0 -1.58 {xmin} {ymin} {xmax} {ymax} 1 1 1 0 1 4 0" for ymin, xmin, ymax, xmax, name in objects]
        write_files(root, {f"label_2/{index:02d}.txt": "\n".join(lines).encode(), f"image_2/{index:02d}.png": PNGS[index]})
    return ""


def write_visdrone(root: pathlib.Path) -> str:
    for index, objects in enumerate(OBJECTS):
        lines = [f"{xmin},{ymin},{xmax - xmin},{ymax - ymin},1,{1 + CLASSES.index(name)},0,0" for ymin, xmin, ymax, xmax, name in objects]
        write_files(root, {f"annotations/{index:02d}.txt": "\n".join(lines).encode(), f"images/{index:02d}.png": PNGS[index]})
    return ""


def write_wider_face(root: pathlib.Path) -> str:
    lines = []
    for index, objects in enumerate(OBJECTS):
        boxes = [f"{xmin} {ymin} {xmax - xmin} {ymax - ymin} 0 0 0 0 0 0 " for ymin, xmin, ymax, xmax, _ in objects]
        lines += [f"event/{index:02d}.png", len(boxes), *(boxes or ["0 " * 10])]
        write_files(root, {f"WIDER_train/images/event/{index:02d}.png": PNGS[index]})
    write_files(root, {"wider_face_split/faces.txt": "\n".join(map(str, lines)).encode()})
    return ""


def write_box_rows(root: pathlib.Path) -> str:
    write_files(root, {f"{index:02d}.png": data for index, data in enumerate(PNGS)})
    rows = [(f"{index:02d}.png", xmin, ymin, xmax, ymax, name) for index, objects in enumerate(OBJECTS) for ymin, xmin, ymax, xmax, name in objects]
    rows += [(f"{index:02d}.png", "", "", "", "", "") for index, objects in enumerate(OBJECTS) if not objects]
    lines = ["filename,xmin,ymin,xmax,ymax,class", *(",".join(map(str, row)) for row in rows)]
    (root / "boxes.csv").write_text("\n".join(lines))
    return "boxes.csv"


def write_lines(root: pathlib.Path) -> str:
    write_files(root, {f"{name}.txt": "".join(f"{name} {index}\n" for index in range(NUM)).encode() for name in CLASSES})
    return ""


def write_coco(root: pathlib.Path) -> str:
    write_files(root, {f"images/{index:02d}.png": data for index, data in enumerate(PNGS)})
    annotations = []
    for index, objects in enumerate(OBJECTS):
        for ymin, xmin, ymax, xmax, name in objects:
            outline = [xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": index,
                    "category_id": 10 + CLASSES.index(name),
                    "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                    "area": (xmax - xmin) * (ymax - ymin),
                    "iscrowd": index % 2,
                    "segmentation": [outline],
                }
            )
    images = [{"id": i, "file_name": f"{i:02d}.png", "height": SIDE, "width": SIDE} for i in range(NUM)]
    categories = [{"id": 10 + class_index, "name": name} for class_index, name in enumerate(CLASSES)]
    content = {"annotations": annotations, "images": images, "categories": categories[::-1]}
    (root / "instances.json").write_text(json.dumps(content))
    return "instances.json"


def write_yolo_polygons(root: pathlib.Path) -> str:
    write_files(root, {f"images/{index:02d}.png": data for index, data in enumerate(PNGS)})
    for index, objects in enumerate(OBJECTS):
        lines = []
        for ymin, xmin, ymax, xmax, name in objects:
            outline = [xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]
            lines.append(" ".join([str(CLASSES.index(name)), *(str(side / SIDE) for side in outline)]))
        write_files(root, {f"labels/{index:02d}.txt": "\n".join(lines).encode()})
    (root / "data.yaml").write_text(f"train: images\nnames: {json.dumps(CLASSES)}\n")
    return ""


def write_masks(root: pathlib.Path) -> str:
    write_files(root, {f"images/{index:02d}.png": data for index, data in enumerate(PNGS)})
    write_files(root, {f"masks/{index:02d}.png": encode(mask, "PNG") for index, mask in enumerate(MASKS)})
    return ""


NUMBERS = np.array([row["number"] for row in ROWS])


def write_npz(save: Callable) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        root.mkdir(parents=True)
        save(root / "digits.npz", x=np.stack(PICTURES), y=NUMBERS)
        return "digits.npz"

    return write


def write_npy(root: pathlib.Path) -> str:
    write_files(root, {"images.npy": npy(np.stack(PICTURES)), "labels.npy": npy(NUMBERS)})
    return ""


def write_idx(pack: Callable[[bytes], bytes], suffix: str) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        images, labels = idx_file(np.stack(GREYS)), idx_file(NUMBERS.astype(np.uint8))
        write_files(root, {f"train-images-idx3-ubyte{suffix}": pack(images), f"train-labels-idx1-ubyte{suffix}": pack(labels)})
        return ""

    return write


def write_fixed_length(root: pathlib.Path) -> str:
    records = [
        bytes([row["number"]])
        + np.float32(row["age"]).tobytes()
        + bytes(row[name] for name in CLASSES)
        + pixels.transpose(2, 0, 1).tobytes()
        for row, pixels in zip(ROWS, PICTURES)
    ]
    write_files(root, {"records.bin": b"head" + b"".join(records) + b"tail!"})
    return "records.bin"


FIXED = (
    "--source=fixed_length",
    f"--record_layout=label:uint8,age:float32,flags:uint8[3],image:uint8[3,{SIDE},{SIDE}]",
    "--header_bytes=4",
    "--footer_bytes=5",
)


def write_tfrecord(stored: Callable[[int], Values], compression: str = "") -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        for shard in range(2):
            records = [example(stored(index)) for index in range(shard, NUM, 2)]
            write_records(root / f"old-{shard:05d}-of-00002.tfrecord", records, compression)
        return ""

    return write


def slim(index: int) -> Values:
    return {"image/encoded": PNGS[index], "image/format": b"png", "image/class/label": index % 3, "image/height": SIDE}


def detection(index: int) -> Values:
    columns = list(zip(*OBJECTS[index])) or [()] * 5
    names = ("ymin", "xmin", "ymax", "xmax")
    boxes = {f"image/object/bbox/{name}": [v / SIDE for v in column] for name, column in zip(names, columns)}
    return {
        "image/encoded": PNGS[index],
        "image/format": b"png",
        **{name: np.array(values, np.float32) for name, values in boxes.items()},
        "image/object/class/label": np.array([CLASSES.index(name) for name in columns[4]], np.int64),
    }


def raw(index: int) -> Values:
    sizes = {"height": SIDE, "width": SIDE, "depth": 3}
    return {"image_raw": PICTURES[index].tobytes(), **sizes, "label": index % 3}


def name_shape_data(index: int) -> Values:
    return {"name": f"{index}", "shape": [SIDE, SIDE, 3], "data": PICTURES[index].tobytes()}


def feature_shape_label(index: int) -> Values:
    return {"feature": PICTURES[index].tobytes(), "shape": [SIDE, SIDE, 3], "label": index % 3}


def own_names(index: int) -> Values:
    return {"picture": PNGS[index], "kind": index % 3, "years": index / 8, "second": encode(RIGHTS[index], "PNG")}


def pair(index: int) -> Mapping[str, bytes]:
    images = {"left.png": PNGS[index], "right.png": encode(RIGHTS[index], "PNG"), "seg.png": encode(MASKS[index], "PNG")}
    return {**images, "cls": str(index % 3).encode()}


def write_tars(members: Callable[[int], Mapping[str, bytes]], mode: str = "w") -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        root.mkdir(parents=True)
        suffix = ".gz" if mode.endswith("gz") else ""
        for shard in range(2):
            with tarfile.open(root / f"{shard:03d}.tar{suffix}", mode) as tar:
                for index in range(shard, NUM, 2):
                    for extension, data in members(index).items():
                        member = tarfile.TarInfo(f"sample{index:03d}.{extension}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
        return ""

    return write


def with_json(index: int) -> Mapping[str, bytes]:
    fields = {name: ROWS[index][name] for name in ("weather", "ground", "age", "tags", "city")}
    return {"png": PNGS[index], "json": json.dumps(fields).encode()}


def write_folders(root: pathlib.Path) -> str:
    write_files(root, {f"{CLASSES[index % 3]}/{index}.png": data for index, data in enumerate(PNGS)})
    return ""


def write_flat(root: pathlib.Path) -> str:
    write_files(root, {f"{index}.png": data for index, data in enumerate(PNGS)})
    return ""


def of_class(index: int) -> Values:
    return {"label": [CLASSES[index % 3]]}


def of_number(index: int) -> Values:
    return {"label": [str(index % 3)]}


def of_objects(label: str) -> Callable[[int], Values]:
    def expect(index: int) -> Values:
        boxes = [side / SIDE for *box, _ in OBJECTS[index] for side in box]
        names = [str(CLASSES.index(name)) if label == "number" else name for *_, name in OBJECTS[index]]
        return {"objects/bbox": boxes, "objects/label": names}

    return expect


def of_names(index: int, names: Sequence[str]) -> Values:
    """Returns the objects of an image, with other class names."""
    objects = of_objects("name")(index)
    return {**objects, "objects/label": [names[CLASSES.index(name)] for name in objects["objects/label"]]}


def of_column(name: str, feature: str = "label") -> Callable[[int], Values]:
    return lambda index: {feature: ROWS[index][name] if isinstance(ROWS[index][name], list) else [ROWS[index][name]]}


def drawn(index: int) -> Values:
    """Returns the objects of an image, and a mask in which smaller rectangles are drawn over larger rectangles."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for ymin, xmin, ymax, xmax, name in sorted(OBJECTS[index], key=lambda o: -(o[2] - o[0]) * (o[3] - o[1])):
        mask[ymin:ymax, xmin:xmax] = 1 + CLASSES.index(name)
    return {**of_objects("name")(index), "mask": mask}


def of_pair(label: Callable[[int], Values]) -> Callable[[int], Values]:
    return lambda index: {**label(index), "right": RIGHTS[index]}


HEADS = ("--label=weather", "--label=ground")
COMMENTED = ("--skip_lines=1", "--comment=#")
PAIR = ("--image_column=left.png", "--feature=right=right.png:image", "--feature=mask=seg.png:mask")

CASES = {
    "image_folder, class": Case(write_folders, [], of_class),
    "image_folder, no label": Case(write_flat, ["--label=none"], lambda index: {}, ()),
    "image_folder, raw": Case(write_folders, ["--image_encoding=raw", f"--image_size=exact={SIDE}x{SIDE}"], of_class),
    "table csv, class": Case(write_csv, ["--label=class"], lambda i: {**of_class(i), "weight": [0.5 + i % 2]}),
    "table parquet, embedded images": Case(write_embedded, [], of_class),
    "table parquet, embedded pairs": Case(write_embedded, ["--feature=right:image"], of_pair(of_class)),
    "table hugging face, class": Case(write_hugging_face, [], of_class, has_splits=True),
    "table csv, multi-label": Case(write_csv, ["--label=tags:multi_label"], of_column("tags")),
    "table parquet, multi-label": Case(write_parquet, ["--label=tags:multi_label"], of_column("tags")),
    "table csv, multi-label columns": Case(write_csv, ["--label=ant,bee,cow:multi_label"], of_column("tags")),
    "table csv, two heads": Case(
        write_csv, HEADS, lambda i: {"weather": [ROWS[i]["weather"]], "ground": [ROWS[i]["ground"]]}, ("weather", "ground")
    ),
    "table parquet, regression": Case(write_parquet, ["--label=age:float"], of_column("age")),
    "table csv, vector": Case(write_csv, ["--label=x,y:float"], lambda i: {"label": [ROWS[i]["x"], ROWS[i]["y"]]}),
    "table csv, segmentation": Case(write_csv, ["--label=mask_path:mask"], lambda i: {"mask": MASKS[i]}, ("mask",)),
    "table csv, dense": Case(write_csv, ["--label=heat_path:array"], lambda i: {"label": HEATS[i].ravel().tolist()}),
    "table jsonl, dense": Case(write_jsonl, ["--label=heat_path:array[4,4,2]"], lambda i: {"label": HEATS[i].ravel().tolist()}),
    "table csv, no label": Case(write_csv, ["--label=none"], lambda index: {}, ()),
    "table csv, extra columns": Case(
        write_csv,
        ["--label=class", "--feature=city", "--feature=count:integer", "--feature=age:float"],
        lambda i: {**of_class(i), "city": [ROWS[i]["city"].encode()], "count": [i * 1000], "age": [i / 8]},
    ),
    "table csv, pairs": Case(
        write_csv,
        ["--label=class", "--feature=city", "--feature=right=right_path:image"],
        lambda i: {**of_pair(of_class)(i), "city": [ROWS[i]["city"].encode()]},
    ),
    "table csv, raw pairs": Case(
        write_csv,
        ["--label=class", "--feature=right=file_name:image", "--image_encoding=raw", f"--image_size=exact={SIDE}x{SIDE}"],
        lambda i: {**of_class(i), "right": PICTURES[i]},
    ),
    "text, class": Case(write_text(lambda row: f"{row['file_name']} {row['class']}"), COMMENTED, of_class),
    "text, regression": Case(
        write_text(lambda row: f"{row['file_name']}\t{row['age']}"), [*COMMENTED, "--label=age:float"], of_column("age")
    ),
    "text, two heads": Case(
        write_text(lambda row: f"{row['file_name']} {row['weather']} {row['ground']}"),
        [*COMMENTED, *HEADS],
        lambda i: {"weather": [ROWS[i]["weather"]], "ground": [ROWS[i]["ground"]]},
        ("weather", "ground"),
    ),
    "text, no label": Case(write_text(lambda row: row["file_name"]), [*COMMENTED, "--label=none"], lambda i: {}, ()),
    "voc, detection": Case(write_voc, [], of_objects("name"), ("objects",)),
    "yolo, detection": Case(write_yolo, ["--split_folders=no"], of_objects("name"), ("objects",)),
    "labelme, detection and segmentation": Case(write_labelme, ["--masks"], drawn, ("objects", "mask")),
    "cvat, detection and segmentation": Case(write_cvat, ["--masks"], drawn, ("objects", "mask")),
    "label_studio, detection and segmentation": Case(write_label_studio, ["--masks"], drawn, ("objects", "mask")),
    "via, detection and segmentation": Case(write_via, ["--masks"], drawn, ("objects", "mask")),
    "kitti, detection": Case(write_kitti, [], of_objects("name"), ("objects",)),
    "visdrone, detection": Case(write_visdrone, [], lambda i: of_names(i, ("pedestrian", "people", "bicycle")), ("objects",)),
    "wider_face, detection": Case(write_wider_face, [], lambda i: of_names(i, ("face",) * len(CLASSES)), ("objects",)),
    "table csv, a row for each box": Case(write_box_rows, [], of_objects("name"), ("objects",)),
    "coco, detection and segmentation": Case(write_coco, ["--masks"], drawn, ("objects", "mask")),
    "yolo, detection and segmentation": Case(write_yolo_polygons, ["--masks", "--split_folders=no"], drawn, ("objects", "mask")),
    "masks, segmentation": Case(write_masks, [], lambda i: {"mask": MASKS[i]}, ("mask",)),
    "arrays npz deflated, class": Case(write_npz(np.savez_compressed), [], of_number),
    "arrays npz, raw": Case(write_npz(np.savez), ["--image_encoding=raw"], of_number),
    "arrays npy, class": Case(write_npy, ["--source=arrays"], of_number),
    "arrays idx gz, class": Case(write_idx(gzip.compress, ".gz"), [], of_number, grey=True, has_splits=True),
    "arrays idx, raw": Case(write_idx(bytes, ""), ["--image_encoding=raw"], of_number, grey=True, has_splits=True),
    "arrays npz, no label": Case(write_npz(np.savez), ["--label=none"], lambda i: {}, ()),
    "fixed_length, class": Case(write_fixed_length, FIXED, of_number),
    "fixed_length, regression": Case(write_fixed_length, [*FIXED, "--label=age:float"], of_column("age")),
    "fixed_length, multi-label": Case(
        write_fixed_length,
        [*FIXED, "--label=flags:multi_label"],
        lambda i: {"label": [str(class_index) for class_index in range(3) if i >> class_index & 1]},
    ),
    "tfrecord slim gzip, class": Case(write_tfrecord(slim, "GZIP"), [], of_number),
    "tfrecord detection": Case(write_tfrecord(detection), [], of_objects("number"), ("objects",)),
    "tfrecord raw, class": Case(write_tfrecord(raw), [], of_number),
    "tfrecord name_shape_data, no label": Case(write_tfrecord(name_shape_data), [], lambda i: {"name": [f"{i}".encode()]}, ()),
    "tfrecord feature_shape_label, class": Case(write_tfrecord(feature_shape_label), [], of_number),
    "tfrecord mapping, regression": Case(
        write_tfrecord(own_names), ["--layout=image=picture", "--label=years:float"], of_column("age")
    ),
    "tfrecord mapping, pairs": Case(
        write_tfrecord(own_names), ["--layout=image=picture,label=kind", "--feature=right=second:image"], of_pair(of_number)
    ),
    "webdataset, class": Case(
        write_tars(lambda i: {"png": PNGS[i], "cls": str(i % 3).encode()}), [], of_number
    ),
    "webdataset gz, class": Case(
        write_tars(lambda i: {"png": PNGS[i], "cls": str(i % 3).encode()}, "w:gz"), [], of_number
    ),
    "webdataset, pairs": Case(write_tars(pair), PAIR, lambda i: {**of_pair(of_number)(i), "mask": MASKS[i]}),
    "webdataset gz, pairs": Case(write_tars(pair, "w:gz"), PAIR, lambda i: {**of_pair(of_number)(i), "mask": MASKS[i]}),
    "webdataset json, multi-label and extra": Case(
        write_tars(with_json),
        ["--label=tags:multi_label", "--feature=city"],
        lambda i: {"label": ROWS[i]["tags"], "city": [ROWS[i]["city"].encode()]},
    ),
    "webdataset, segmentation": Case(
        write_tars(lambda i: {"png": PNGS[i], "seg.png": encode(MASKS[i], "PNG")}),
        ["--label=seg.png:mask"],
        lambda i: {"mask": MASKS[i]},
        ("mask",),
    ),
    "webdataset, dense": Case(
        write_tars(lambda i: {"png": PNGS[i], "npy": npy(HEATS[i])}),
        ["--label=npy:array"],
        lambda i: {"label": HEATS[i].ravel().tolist()},
    ),
    "webdataset, no label": Case(write_tars(lambda i: {"png": PNGS[i]}), ["--label=none"], lambda i: {}, ()),
}
