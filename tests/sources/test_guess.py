"""What an input is, by the names that lie there."""

import pytest

from beam_pipelines.errors import UserError
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
    ],
    "table": [["metadata.csv", "1.jpg"], ["train/metadata.jsonl", "train/1.jpg", "test/metadata.jsonl"], ["metadata.parquet"],
        ["part-0.csv", "part-1.csv"],
        ["train.tsv", "test.tsv", "README.md"],
        ["rows.jsonl.gz"],
        ["train/part-0.csv", "test/part-0.csv.gz"],
        ["images/1.jpg", "rows.csv"],
    ],
    "voc": [
        ["Annotations/1.xml", "JPEGImages/1.jpg", "ImageSets/Main/train.txt"],
        ["annotations/1.xml", "images/1.jpg"],
        ["1.xml", "1.jpg"],
        ["train/1.xml", "train/1.jpg"],
    ],
    "coco": [["annotations/instances_train2017.json", "train2017/1.jpg"], ["train/_annotations.coco.json", "train/1.jpg"]],
    "masks": [["images/1.jpg", "masks/1.png"], ["train/images/1.jpg", "train/masks/1.png"], ["JPEGImages/1.jpg", "SegmentationClass/1.png"]],
    "arrays": [
        ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
        ["data_batch_1.bin", "batches.meta.txt"],
        ["train.bin", "test.bin", "fine_label_names.txt"],
        ["mnist.npz"],
    ],
    "tfrecord": [["train-00000-of-00002", "train-00001-of-00002"], ["a.tfrecord"], ["dataset_info.json", "x-train.tfrecord-00000-of-00001"], ["a.array_record"]],
    "webdataset": [["000.tar", "001.tar"]],
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
def test_a_folder_is_known_by_its_names(tmp_path, kind, names):
    write_files(tmp_path, {**dict.fromkeys(names, b"x"), ".hidden/metadata.csv": b"x", ".metadata.csv": b"x"})
    assert guess_source(str(tmp_path)) == kind


@pytest.mark.parametrize("kind, name", [(kind, name) for kind, names in FILES.items() for name in names])
def test_a_file_is_known_by_its_name(tmp_path, kind, name):
    assert guess_source(f"{tmp_path}/{name}") == kind


def test_what_its_name_does_not_tell_has_to_be_said(tmp_path):
    with pytest.raises(UserError, match=r"data\.bin: its name does not tell what it is; expected --source"):
        guess_source(f"{tmp_path}/data.bin")
