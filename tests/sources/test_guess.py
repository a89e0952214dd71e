"""Tests that the source is detected from file names, and that errors name unsupported formats."""

import pytest

from beam_pipelines.errors import UserError
from beam_pipelines.sources.files.label_files import recognise
from beam_pipelines.sources.guess import guess_source
from made_images import write_files

FOLDERS = {
    "image_folder": [
        ["rose/1.jpg", "tulip/1.jpg"],
        ["train/rose/1.jpg", "test/rose/1.jpg"],
        ["images/1.jpg", "other/1.jpg"],
        ["images/1.jpg"],
        ["rose/1.jpg", "tulip/notes.csv"],
        ["rose/1.jpg", "tulip/1.jpg", "notes.csv"],
        ["rose/1.jpg", "rose/notes.csv"],
        ["rose/1.jpg", "rose/metadata.csv", "rose/1.xml"],
        ["rose/1.JPG", "rose/_annotations.coco.json", "tulip/1.jpg"],
        ["1.jpg", "notes.csv"],
        ["masks/1.jpg", "hats/1.jpg"],
        ["@eaDir/1.csv", "rose/1.jfif", "tulip/1.HEIC"],
    ],
    "table": [["metadata.csv", "1.jpg"], ["train/metadata.jsonl", "train/1.jpg", "test/metadata.jsonl"], ["metadata.parquet"],
        ["part-0.csv", "part-1.csv"],
        ["train.tsv", "test.tsv", "README.md"],
        ["000.tar", "rows.parquet"],
        ["rows.jsonl.gz"],
        ["train/part-0.csv", "test/part-0.csv.gz"],
        ["images/1.jpg", "rows.csv"],
        ["train/_annotations.csv", "train/1.jpg", "valid/_annotations.csv", "valid/2.jpg"],
    ],
    "voc": [
        ["Annotations/1.xml", "JPEGImages/1.jpg", "ImageSets/Main/train.txt"],
        ["annotations/1.xml", "images/1.jpg"],
        ["1.xml", "1.jpg"],
        ["train/1.xml", "train/1.jpg"],
    ],
    "coco": [["annotations/instances_train2017.json", "train2017/1.jpg"], ["train/_annotations.coco.json", "train/1.jpg"]],
    "masks": [
        ["images/1.jpg", "masks/1.png"],
        ["train/images/1.jpg", "train/masks/1.png"],
        ["JPEGImages/1.jpg", "SegmentationClass/1.png"],
        ["images/training/1.jpg", "annotations/training/1.png", "annotations/validation/2.png", "objectInfo150.txt"],
        ["1.jpg", "1_mask.png"],
        ["train/1_sat.jpg", "train/1_mask.png", "test/2_sat.jpg", "class_dict.csv"],
        ["ISIC2018_Task1-2_Training_Input/1.jpg", "ISIC2018_Task1_Training_GroundTruth/1_segmentation.png"],
    ],
    "arrays": [
        ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
        ["data_batch_1.bin", "batches.meta.txt"],
        ["train.bin", "test.bin", "fine_label_names.txt"],
        ["mnist.npz"],
    ],
    "tfrecord": [["train-00000-of-00002", "train-00001-of-00002"], ["a.tfrecord"], ["dataset_info.json", "x-train.tfrecord-00000-of-00001"], ["a.array_record"]],
    "webdataset": [["000.tar", "001.tar"], ["000.tar", "000.parquet", "000_stats.json"]],
}
FILES = {
    "table": ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.CSV", "a.csv.gz", "*.csv", "**/*.parquet", "part-{0..9}.jsonl"],
    "coco": ["instances.json"],
    "arrays": ["mnist.npz", "x.npy", "t10k-images-idx3-ubyte"],
    "webdataset": ["a.tar", "shard-{000..010}.tar", "*.tar"],
    "tfrecord": ["a.tfrecord", "a.tfrecord-00000-of-00010", "train-*-of-00010", "*.tfrecord", "train-00001-of-00010", "a.array_record", "a.array_record-*"],
    "text": ["train.txt", "list.lst"],
}


@pytest.mark.parametrize("kind, names", [(kind, names) for kind, cases in FOLDERS.items() for names in cases])
def test_source_of_a_folder_is_detected_from_file_names(tmp_path, kind, names):
    write_files(tmp_path, {**dict.fromkeys(names, b"x"), ".hidden/metadata.csv": b"x", ".metadata.csv": b"x"})
    assert guess_source(str(tmp_path)).kind.name == kind


@pytest.mark.parametrize("kind, name", [(kind, name) for kind, names in FILES.items() for name in names])
def test_source_of_a_file_is_detected_from_its_name(tmp_path, kind, name):
    assert guess_source(f"{tmp_path}/{name}").kind.name == kind


LABELME = b'{"version": "5.2.1", "shapes": [{"label": "cat", "points": [[4, 5]]}], "imagePath": "1.jpg"}'
YOLO = b"0 0.5 0.5 0.25 0.5\n11 0.25 0.25 0.1 1\n"
VOC = b"<annotation><filename>1.jpg</filename></annotation>"
KITTI = b"Car 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
# Maps each case to its input, files and words of the error message.
UNREADABLE = {
    "unknown file": ("data.bin", {"data.bin": b"x"}, ["data.bin", "--source"]),
    "HDF5": ("x.h5", {"x.h5": b"\x89HDF\r\n\x1a\n"}, ["HDF5", ".npz"]),
    "HDF5 with another extension": ("x.bin", {"x.bin": b"\x89HDF\r\n\x1a\n"}, ["HDF5", ".npz"]),
    "zip file": ("x.zip", {"x.zip": b"PK\x03\x04"}, ["archive", "unzip -q ", "/x.zip -d ", "--input="]),
    "zip file with spaces": ("my x.ZIP", {"my x.ZIP": b"PK\x03\x04"}, ["/my x.ZIP' -d '"]),
    "7z file": ("x.7z", {"x.7z": b"7z\xbc\xaf"}, ["7z x "]),
    "7z file with another extension": ("x.bin", {"x.bin": b"7z\xbc\xaf"}, ["archive", "--input"]),
    "tar file of another compression": ("x.tar.xz", {"x.tar.xz": b"\xfd7zXZ"}, ["tar -xJf ", "--input="]),
    "pickles": ("data_batch_1", {"data_batch_1": b"\x80\x04x"}, ["pickle"]),
    "missing file": ("x.mat", {}, ["MATLAB"]),
    "LabelMe": ("1.json", {"1.json": LABELME}, ["LabelMe", "--source=labelme"]),
    "JSON list of rows": ("x.json", {"x.json": b'[{"image": "1.jpg", "label": "a"}]'}, ["JSON Lines"]),
    "BDD100K": ("1.json", {"1.json": b'[{"name": "1.jpg", "labels": [{"category": "car", "box2d": {"x1": 1}}]}]'}, ["BDD100K", "--source=coco"]),
    "YOLO": ("1.txt", {"1.txt": YOLO}, ["YOLO", "--source=yolo", "data.yaml"]),
    "KITTI": ("1.txt", {"1.txt": KITTI}, ["KITTI", "--source=kitti"]),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unsupported_format_is_named_with_alternatives(tmp_path, case):
    name, files, words = UNREADABLE[case]
    write_files(tmp_path, files)
    with pytest.raises(UserError) as caught:
        guess_source(f"{tmp_path}/{name}".rstrip("/"))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "--ignore" not in str(caught.value)


COCO_FOLDERS = {
    "annotations/instances_train.json": "{root}",
    "instances_train.json": "{root}",
    "train/_annotations.coco.json": "{root}",
    "photos/_annotations.coco.json": "{root}/photos",
    "x.json": "{root}/x.json",
}


@pytest.mark.parametrize("name", COCO_FOLDERS)
def test_advice_for_coco_names_the_folder_of_all_splits(tmp_path, name):
    write_files(tmp_path, {name: b'{"images": [], "annotations": []}'})
    expected = COCO_FOLDERS[name].format(root=tmp_path)
    assert f"--input={expected} --source=coco" in recognise(f"{tmp_path}/{name}").advice


@pytest.mark.parametrize("name, data", [("x.json", b'{"images": [], "annotations": []}'), ("x.json", b"{}"), ("x.txt", b"a/1.jpg 3\n"), ("x.txt", b"")])
def test_supported_or_unknown_content_leaves_the_choice_to_the_name(tmp_path, name, data):
    write_files(tmp_path, {name: data})
    assert guess_source(f"{tmp_path}/{name}").kind.name == {"x.json": "coco", "x.txt": "text"}[name]
