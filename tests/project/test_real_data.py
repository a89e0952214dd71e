"""Tests the command with real files: photographs with VOC boxes, photographs of hands, and scanned digits.

The photographs are not part of this project. The tests look for `shared/data` in the checkout and beside the checkout.
"""

import csv
import io
import pathlib
import tarfile
import xml.etree.ElementTree

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image, ImageEnhance, ImageOps

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.images.visual_groups import find_edges, join_edges
from beam_pipelines.images.near_hashes import search_parts
from beam_pipelines.images.perceptual_hash import load_for_hash, perceptual_hashes
from engines import digest
from made_arrays import idx_file
from made_images import write_files

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = next((root / "shared/data" for root in (ROOT, ROOT.parent) if (root / "shared/data").is_dir()), None)
SHORT = 200


def unpack(name: str, folder: pathlib.Path) -> pathlib.Path:
    if DATA is None or not (DATA / name).exists():
        pytest.skip(f"shared/data has no {name}")
    with tarfile.open(DATA / name) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # needs Python 3.11.4
        archive.extractall(folder)
    return folder


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> tf_input.PreparedDataset:
    assert main(["prepare", "--input", str(source), "--output", str(output), "--name=made", *options]) == 0
    return tf_input.open(output)


@pytest.fixture(scope="module")
def raccoons(tmp_path_factory) -> pathlib.Path:
    """Returns photographs with all eight EXIF orientations, and with boxes that fit the rotated images."""
    folder = unpack("raccoon-voc.tar.xz", tmp_path_factory.mktemp("raccoons"))
    removed = {path.name for index, path in enumerate(sorted((folder / "images").iterdir())) if index % 2}  # for speed
    for path in [*(folder / "annotations").iterdir()]:
        if (name := xml.etree.ElementTree.parse(path).findtext("filename")) in removed:
            path.unlink()
            (folder / "images" / name).unlink()
    for index, path in enumerate(sorted((folder / "images").iterdir())):
        exif = Image.Exif()
        exif[0x0112] = index % 8 + 1
        segment = b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")
        data = path.read_bytes().replace(b"Exif\0\0", b"None\0\0")
        assert data[:2] == b"\xff\xd8", path
        path.write_bytes(data[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + data[2:])
    return folder


@pytest.fixture(scope="module")
def upright_boxes(raccoons) -> dict[bytes, tuple[tuple[int, int], np.ndarray]]:
    """Returns a dictionary from the key of each photograph to its upright size and its boxes in pixels.

    The test paints each box into an image, rotates the image with Pillow and locates the box again.
    """
    expected = {}
    for path in (raccoons / "annotations").iterdir():
        root = xml.etree.ElementTree.parse(path).getroot()
        image = raccoons / "images" / root.findtext("filename")
        with Image.open(image) as opened:
            exif, size = opened.getexif(), opened.size
        boxes = []
        for box in root.iter("bndbox"):
            xmin, ymin, xmax, ymax = (int(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
            painted = Image.new("L", size)
            painted.paste(255, (xmin, ymin, xmax, ymax))
            painted.getexif()[0x0112] = exif[0x0112]
            left, top, right, bottom = ImageOps.exif_transpose(painted).getbbox()
            boxes.append((top, left, bottom, right))
        width, height = size if exif[0x0112] <= 4 else size[::-1]
        expected[f"images/{image.name}".encode()] = ((height, width), np.array(boxes, np.float64))
    return expected


@pytest.fixture(scope="module")
def prepared_raccoons(raccoons, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("prepared") / "out"
    prepare(raccoons, output, f"--image_size=short={SHORT}")
    return output


def test_boxes_match_the_voc_annotations_within_a_pixel(upright_boxes, prepared_raccoons):
    builder = tfds.builder_from_directory(str(prepared_raccoons))
    assert builder.info.features["objects"].feature["label"].names == ["raccoon"]
    actual = {}
    for item in tfds.as_numpy(builder.as_dataset(split="+".join(builder.info.splits))):
        actual[item["key"]] = item
    assert actual.keys() == upright_boxes.keys() and len(actual) == 100
    for key, ((height, width), boxes) in upright_boxes.items():
        item = actual[key]
        stored = (item["height"], item["width"])
        scale = min(1, SHORT / min(height, width))
        assert np.abs(np.array(stored) - np.array([height, width]) * scale).max() <= 0.5, key
        assert item["image"].shape == (*stored, 3), key
        pixels = item["objects"]["bbox"] * np.array([*stored, *stored])
        assert np.abs(pixels - boxes * scale).max() <= 1, key


def test_detection_batches_contain_every_box(upright_boxes, prepared_raccoons):
    dataset = tf_input.open(prepared_raccoons)
    num_boxes = 0
    for split in dataset.splits:
        for images, objects in dataset.batches(split, batch_size=16, image_size=128, shuffle=False):
            assert images.shape[1:] == (128, 128, 3)
            num_boxes += int(tf.reduce_sum(tf.cast(objects["valid"], tf.int32)))
    assert num_boxes == sum(len(boxes) for _, boxes in upright_boxes.values())


def test_table_and_class_folders_give_the_same_dataset(tmp_path):
    folder = unpack("sign-language-digits.tar.xz", tmp_path / "hands") / "Dataset"
    for index, path in enumerate(sorted(folder.glob("*/*.JPG"))):
        if index % 4:  # a quarter of the 2,062 photographs, for speed
            path.unlink()
    # The report shows the options of the run
    options = ("--splits=train=0.8,test=0.2", "--num_shards=4", "--no_report")
    as_folders = prepare(folder, tmp_path / "folders", *options)
    with open(folder / "hands.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "label"])
        writer.writerows([f"{path.parent.name}/{path.name}", path.parent.name] for path in sorted(folder.glob("*/*.JPG")))
    as_table = prepare(folder / "hands.csv", tmp_path / "table", *options)
    assert as_table.class_names == as_folders.class_names == tuple(map(str, range(10)))
    assert sum(as_table.num_examples(split) for split in as_table.splits) == 516
    assert digest(tmp_path / "table") == digest(tmp_path / "folders")


DIGITS = {
    "npz": ["--source=arrays"],
    "idx": [],
    "cifar": [],
    "fixed_length": ["--source=fixed_length", "--record_layout=label:uint8,image:uint8[8,8]"],
}


@pytest.mark.parametrize("kind, encoding", [*zip(DIGITS, ("raw", "file", "raw", "file"))])
def test_digits_are_read_back_from_each_array_format(tmp_path, kind, encoding):
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    pixels, labels = (digits.images[::4] * 15).astype(np.uint8), digits.target[::4].astype(np.uint8)
    if kind == "cifar":  # CIFAR files have one size and three channels
        pixels = np.repeat(pixels[:, None].repeat(4, axis=2).repeat(4, axis=3), 3, axis=1)
    archive = io.BytesIO()
    np.savez(archive, x=pixels, y=labels)
    records = b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, pixels))
    files = {
        "npz": {"digits.npz": archive.getvalue()},
        "idx": {"train-images-idx3-ubyte": idx_file(pixels), "train-labels-idx1-ubyte": idx_file(labels)}
        if kind == "idx"
        else {},
        "cifar": {"data_batch_1.bin": records, "batches.meta.txt": "".join(f"digit {n}\n" for n in range(10)).encode()},
        "fixed_length": {"digits.bin": records},
    }[kind]
    source = write_files(tmp_path / "in", files)
    dataset = prepare(
        source / "digits.bin" if kind == "fixed_length" else source, tmp_path / "out", f"--image_encoding={encoding}", *DIGITS[kind]
    )
    names = tuple(f"digit {n}" if kind == "cifar" else str(n) for n in range(10))
    assert dataset.class_names == names
    shown = pixels.transpose(0, 2, 3, 1) if kind == "cifar" else pixels[..., np.newaxis]
    expected = sorted((image.tobytes(), label) for image, label in zip(shown, labels))
    actual = []
    for split in dataset.splits:
        for images, numbers in dataset.batches(split, batch_size=256, shuffle=False):
            actual += zip((image.tobytes() for image in images.numpy()), numbers.numpy())
    assert sorted(actual) == expected


def crop_border(image: Image.Image, fraction: float) -> Image.Image:
    """Crops a fraction of the height and of the width, equally on opposite sides of the image."""
    dx, dy = (round(side * fraction / 2) for side in image.size)
    return image.crop((dx, dy, image.width - dx, image.height - dy))


def as_jpeg(image: Image.Image, quality: int = 85) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


# Maps each kind of near-duplicate to a function that makes it and to the share that must be found.
NEAR_DUPLICATES = {
    "recompressed, quality 30": (lambda image: as_jpeg(image, 30), 1.0),
    "half the size": (lambda image: as_jpeg(image.resize((image.width // 2, image.height // 2))), 1.0),
    "a quarter of the size": (lambda image: as_jpeg(image.resize((image.width // 4, image.height // 4), Image.Resampling.BICUBIC)), 1.0),
    "brightness x 1.3": (lambda image: as_jpeg(ImageEnhance.Brightness(image).enhance(1.3)), 0.95),
    "grey": (lambda image: as_jpeg(image.convert("L")), 1.0),
    "flipped": (lambda image: as_jpeg(ImageOps.mirror(image)), 1.0),
    "cropped by 2 %": (lambda image: as_jpeg(crop_border(image, 0.02)), 0.95),
    "cropped by 5 %": (lambda image: as_jpeg(crop_border(image, 0.05)), 0.75),
}


def find_near_duplicates(photographs: list[bytes]) -> tuple[dict[str, float], int]:
    """Returns the fraction of near-duplicates that are found for each kind of copy, and the number of false pairs."""
    images, num = [Image.open(io.BytesIO(data)).convert("RGB") for data in photographs], len(photographs)
    encoded = [*photographs, *(make(image) for make, _ in NEAR_DUPLICATES.values() for image in images)]
    hashes, _ = perceptual_hashes([load_for_hash(data, "strict") for data in encoded])
    edges, _ = join_edges(find_edges(hashes, 8, part) for part in search_parts(len(hashes)))
    shares = {name: float(np.isin(np.arange(num), edges[edges[:, 1] - edges[:, 0] == num * kind, 0]).mean()) for kind, name in enumerate(NEAR_DUPLICATES, 1)}
    return shares, int((edges < num).all(axis=1).sum())


def test_near_duplicates_are_found_without_false_pairs(tmp_path):
    paths = sorted(path for path in unpack("photos.tar", tmp_path).rglob("*") if path.is_file())
    shares, num_false = find_near_duplicates([path.read_bytes() for path in paths[::20]])
    assert not num_false
    for name, (_, expected) in NEAR_DUPLICATES.items():
        assert shares[name] >= expected, name
