"""Tests which links folder sources follow, and that the listing is the same on disk and in an object store."""

import io
import json
import os
import pathlib
import re
import tarfile
from typing import Any, Iterator

import numpy as np
import pytest

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.file_listing import LINK_OUT, FileListing, ListedFile
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.registry import find_kind
from listed import Listing
from made_images import write_files
from object_stores import StoreServer, connected_to, shared_server, upload_files

SIDES = b"".join(b"<%s>%d</%s>" % (side, number, side) for number, side in enumerate((b"xmin", b"ymin", b"xmax", b"ymax")))
XML = b"<annotation><filename>%s</filename><object><name>cat</name><bndbox>" + SIDES + b"</bndbox></object></annotation>"
COCO = json.dumps(
    {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "../../../b.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
).encode()

FOLDERS = {
    "voc": {
        "VOC2007/Annotations/a.xml": XML % b"a.jpg",
        "VOC2007/Annotations/b.xml": XML % b"a.jpg",
        "VOC2007/Annotations/c.xml": XML % b"../../../../d.jpg",
        "VOC2007/Annotations/e.xml": XML % b"f.jpg",
        "VOC2007/JPEGImages/a.jpg": b"1",
        "VOC2007/JPEGImages/b.jpg": b"12",
        "VOC2007/JPEGImages/f.jpg": b"123",
        "VOC2007/JPEGImages/g.jpg": b"1234",
        "VOC2007/JPEGImages/.hidden/g.jpg": b"1234",
        "VOC2007/ImageSets/Main/train.txt": b"a\nb\nc\ne\nf\n",
        "VOC2007/ImageSets/Main/val.txt": b"g\nh\n",
    },
    "coco": {
        "annotations/instances_train2017.json": COCO,
        "annotations/instances_val2017.json": COCO.replace(b"b.jpg", b"c.jpg"),
        "train2017/a.jpg": b"12",
        "images/val2017/a.jpg": b"123",
    },
    "masks": {
        "images/train/x/a.jpg": b"1",
        "masks/train/x/a_mask.png": b"1",
        "images/train/b.jpg": b"1",
        "images/train/notes.txt": b"1",
        "masks/train/c.png": b"1",
        "images/val/d.jpg": b"12",
        "masks/val/d.png": b"12",
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with connected_to(shared_server("s3")) as server:
        yield server


def list_source(root: object, kind: str, **options: Any) -> tuple[list[str], int]:
    listing = Listing(root, kind, with_sizes=True, **options)
    results = [*listing.images.values(), *listing.letters.values()]
    return sorted(str(item).replace(listing.root, "ROOT") for item in results), listing.num_ignored


@pytest.mark.parametrize("kind", FOLDERS)
def test_object_store_lists_the_same_as_a_local_folder(server, tmp_path, kind):
    in_store = list_source(upload_files(server, FOLDERS[kind]), kind)
    assert in_store == list_source(write_files(tmp_path, FOLDERS[kind]), kind)
    assert all(sum(name in item for item in in_store[0]) >= 2 for name in ("InputRecord", "DeadLetter"))


def test_link_with_a_backslash_in_its_name_is_followed(tmp_path):
    root = write_files(tmp_path / "in", {"a/b.jpg": b"12"})
    (root / "a\\b.jpg").symlink_to(write_files(tmp_path / "out", {"1.jpg": b"1"}) / "1.jpg")
    (root / "c\\b.jpg").symlink_to("a/b.jpg")
    actual = sorted(FileListing(Root(str(root)), ()).walk())
    assert [(entry.path, entry.message if isinstance(entry, DeadLetter) else "") for entry in actual] == [
        ("a/b.jpg", ""),
        ("a\\b.jpg", LINK_OUT),
        ("c\\b.jpg", ""),
    ]
    assert "--follow_links" in LINK_OUT
    followed = FileListing(Root(str(root), follows_links=True), ()).walk()
    assert sorted(item.path for item in followed) == ["a/b.jpg", "a\\b.jpg", "c\\b.jpg"]


def test_links_are_followed_except_loops(tmp_path):
    """If links to a parent folder were followed, the listing would never end."""
    outside = write_files(tmp_path / "outside", {"x/1.jpg": b"x", "y/2.jpg": b"x"})
    root = write_files(tmp_path / "in", {"a/3.jpg": b"x", "b/4.jpg": b"x"})
    links = {
        **{"c": "../outside/x", "d.jpg": "../outside/y/2.jpg", "e": "a"},
        **{"up": ".", "upper": "..", "a/b": "../b", "b/a": "../a", "f": "f", "gone": "nowhere", "null.jpg": "/dev/null"},
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    (outside / "x/in").symlink_to(root)
    os.mkfifo(outside / "pipe")
    (root / "pipe.jpg").symlink_to(outside / "pipe")
    actual = list(FileListing(Root(str(root), follows_links=True), ()).walk())
    assert sorted(item.path for item in actual if isinstance(item, ListedFile)) == [
        *("a/3.jpg", "a/b/4.jpg", "b/4.jpg", "b/a/3.jpg", "c/1.jpg", "d.jpg", "e/3.jpg", "e/b/4.jpg"),
    ]
    rejected = {letter.path: letter.reason for letter in actual if isinstance(letter, DeadLetter)}
    assert rejected == dict.fromkeys(("a/b/a", "b/a/b", "c/in", "e/b/a", "up", "upper", "f", "gone", "null.jpg", "pipe.jpg"), "symlink")
    assert FileListing(Root(str(root), follows_links=True), ()).level().folders == ["a", "b", "c", "e"]


def make_npz(count: int) -> bytes:
    file = io.BytesIO()
    np.savez(file, images=np.zeros((count, 4, 4, 3), np.uint8), labels=np.arange(count))
    return file.getvalue()


def make_tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


# Maps each source to its files and the files and folders that become links.
FOLLOWED = {
    "image_folder": ({"cat/a.jpg": b"1", "dog/b.jpg": b"1"}, ["cat/a.jpg", "dog"]),
    "table": ({"rows.csv": b"file_name,label\na.jpg,cat\nx/b.jpg,dog\n", "a.jpg": b"1", "x/b.jpg": b"1"}, ["rows.csv", "a.jpg", "x"]),
    "text": ({"train.txt": b"a.jpg cat\n", "a.jpg": b"1"}, ["train.txt", "a.jpg"]),
    "coco": (FOLDERS["coco"], ["annotations", "images"]),
    "masks": (FOLDERS["masks"], ["images", "masks"]),
    "voc": ({"Annotations/a.xml": XML % b"a.jpg", "JPEGImages/a.jpg": b"1"}, ["Annotations", "JPEGImages/a.jpg"]),
    "arrays": ({"a.npz": make_npz(3), "b/c.npz": make_npz(2)}, ["a.npz", "b"]),
    "webdataset": ({"a.tar": make_tar({"1.png": b"x", "1.cls": b"1"}), "b/c.tar": make_tar({"2.png": b"x", "2.cls": b"1"})}, ["a.tar", "b"]),
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_follow_links_lists_link_targets_like_ordinary_files(tmp_path, kind):
    files, links = FOLLOWED[kind]
    root, outside = write_files(tmp_path / "in", files), tmp_path / "outside"
    expected = list_source(root, kind)
    for number, link in enumerate(links):
        outside.mkdir(exist_ok=True)
        (root / link).rename(outside / str(number))
        (root / link).symlink_to(outside / str(number))
    assert list_source(root, kind, follow_links=True) == expected
    try:
        assert list_source(root, kind) != expected
    except UserError as error:
        assert "--follow_links" in str(error)


CSV = b"file_name,label\na.jpg,cat\n"
# Maps each case to source, pattern, files, name of the link and target. The target `folder` has files of each kind.
RELEVANT_LINKS = {
    "missing table": ("table", "", {"part-1.csv": CSV}, "part-2.csv", "gone"),
    "missing table of a pattern": ("table", "/*.csv", {"part-1.csv": CSV}, "part-2.csv", "gone"),
    "table of a recursive pattern": ("table", "/**/*.csv", {"x/1.csv": CSV}, "x/2.csv", "gone"),
    "folder of a recursive pattern": ("table", "/part-*/**/x.csv", {"part-1/x.csv": CSV}, "part-2", "folder"),
    "folder of a pattern": ("table", "/part-*/*.csv", {"part-1/x.csv": CSV}, "part-2", "folder"),
    "split folder with tables": ("table", "", {"train/metadata.csv": CSV}, "val", "folder"),
    "folder named like a table": ("table", "", {"1/a.csv": CSV}, "2.csv", "folder"),
    "missing metadata file": ("table", "", {"train/metadata.csv": CSV}, "val/metadata.csv", "gone"),
    "missing list": ("text", "", {"train.txt": b"a.jpg cat\n"}, "val.txt", "gone"),
    "missing annotation file": ("coco", "", FOLDERS["coco"], "annotations/instances_test.json", "gone"),
    "folder with annotations": ("coco", "", {"train/_annotations.coco.json": COCO}, "valid", "folder"),
    "split folder with images": ("masks", "", FOLDERS["masks"], "images/test", "folder"),
    "split folder with image and mask folders": ("masks", "", {f"train/{name}": data for name, data in FOLDERS["masks"].items()}, "testing", "folder"),
    "second year": ("voc", "", FOLDERS["voc"], "VOC2012", "folder"),
    "split folder of VOC files": ("voc", "", {"train/a.xml": XML % b"a.jpg", "train/a.jpg": b"1"}, "val", "folder"),
    "list folder": ("voc", "", {"Annotations/a.xml": XML % b"a.jpg", "JPEGImages/a.jpg": b"1"}, "ImageSets", "folder"),
}


@pytest.mark.parametrize("case", RELEVANT_LINKS)
def test_rejects_links_to_files_that_the_source_would_read(tmp_path, case):
    kind, pattern, files, link, target = RELEVANT_LINKS[case]
    link_targets = {"metadata.csv": CSV, "x.csv": CSV, "_annotations.coco.json": COCO, "images/a.jpg": b"1", "masks/a.png": b"1"}
    write_files(tmp_path / "folder", {**link_targets, "annotations/a.xml": XML % b"a.jpg", "Main/train.txt": b"a"})
    root = write_files(tmp_path / "in", files)
    expected = list_source(f"{root}{pattern}", kind)
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(tmp_path / target)
    with pytest.raises(UserError, match=rf"^--input=.*: '{link}' .*--follow_links"):
        list_source(f"{root}{pattern}", kind)
    assert list_source(f"{root}{pattern}", kind, ignore=(link,))[0] == expected[0]


REJECT_LINK_TO_ANY_FOLDER = {"split folder of VOC files", "table of a recursive pattern"}


@pytest.mark.parametrize("case", sorted(RELEVANT_LINKS.keys() - REJECT_LINK_TO_ANY_FOLDER))
def test_links_to_irrelevant_files_change_nothing(tmp_path, case):
    kind, pattern, files, *_ = RELEVANT_LINKS[case]
    root = write_files(tmp_path / "in", files)
    expected = list_source(f"{root}{pattern}", kind)
    (root / "gone.jpg").symlink_to("nowhere")
    (root / "others").symlink_to(write_files(tmp_path / "others", {"a.jpg": b"1"}))
    assert list_source(f"{root}{pattern}", kind)[0] == expected[0]


SINGLE_DATASETS = {
    "one annotation file": ("coco", "in.json", {"in.json": COCO, "a.jpg": b"1"}),
    "one folder of annotations and images": ("voc", "", {"a.xml": XML % b"a.jpg", "a.jpg": b"1", "train/b.jpg": b"1"}),
    "one folder of": ("voc", "", {"Annotations/a.xml": XML % b"a.jpg", "JPEGImages/a.jpg": b"1"}),
    "images directly in its folder of images": ("masks", "", {"images/a.jpg": b"1", "masks/a.png": b"1", "images/train/b.jpg": b"1"}),
}


@pytest.mark.parametrize("description", SINGLE_DATASETS)
def test_single_dataset_rejects_split_folders(tmp_path, description):
    kind, name, files = SINGLE_DATASETS[description]
    root = write_files(tmp_path, files) / name
    assert list_source(root, kind)[0]
    with pytest.raises(UserError, match=rf"^--split_folders=yes: {root} (is|has) {description}"):
        list_source(root, kind, split_folders=True)


def test_readme_is_not_read_as_a_list(tmp_path):
    files = {"train.txt": b"1.jpg cat\n", "val.txt": b"2.jpg cat\n", "README.txt": b"About cats\n", "1.jpg": b"1", "2.jpg": b"2"}
    source = open_source(PrepareOptions(str(write_files(tmp_path, files)), "out", "made", source=SourceConfig(kind=find_kind("text"))))
    actual = [image for part in source.parts() for image in source.list(part)]
    assert sorted((image.path, image.split) for image in actual) == [("1.jpg", "train"), ("2.jpg", "validation")]


def test_relative_rejects_paths_outside_the_root(tmp_path: pathlib.Path) -> None:
    root = Root(str(tmp_path))
    for path in ("a/b.jpg", f"{tmp_path}/a/b.jpg", "./a//b.jpg", r"a\b.jpg", "c/../a/b.jpg"):
        assert root.relative(path) == "a/b.jpg", path
    for path in ("", ".", "..", "../x", "/etc/passwd", "s3://bucket/a.jpg", "gs://bucket", "a\0b", "\ud800.jpg"):
        with pytest.raises(OutsideError, match=f"^{re.escape(repr(printable(path)))} is not a path"):
            root.relative(path)
