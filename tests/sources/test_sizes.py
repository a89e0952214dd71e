"""Tests that listing a source in an object store requests pages of names and sizes, but not each image."""

import json
import pathlib
import urllib.parse
from typing import Iterator

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.publish.summary import format_size
from beam_pipelines.sources.files.sizes import add_sizes, find_sizes
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.storage.object_stores import object_listing
from beam_pipelines.storage.files import files_at
from made_images import encode, jpeg
from object_stores import Faults, StoreServer, connected_to, fault_proxy, shared_server

FOLDERS = 5  # number of prefixes with images
XML = "<annotation><filename>camera-{0}.jpg</filename><object><name>cat</name>" + (
    "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
)


@pytest.fixture(scope="module", params=["s3", "gs"])
def proxied(request) -> Iterator[tuple[StoreServer, Faults]]:
    with fault_proxy(shared_server(request.param)) as (proxied, faults), connected_to(proxied):
        yield proxied, faults


def paths(num: int) -> list[str]:
    return [f"photos/{index % FOLDERS}/{index * 7919 % num:03d}.jpg" for index in range(num)]


def coco(num: int) -> dict[str, bytes]:
    images = [{"id": index, "file_name": path, "height": 16, "width": 16} for index, path in enumerate(paths(num))]
    boxes = [{"image_id": index, "category_id": 1, "bbox": [1, 1, 5, 5]} for index in range(num)]
    return {"all.json": json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}).encode()}


def voc(num: int) -> dict[str, bytes]:
    return {f"{path.removesuffix('jpg')}xml": XML.format(index).encode() for index, path in enumerate(paths(num))}


def table(num: int) -> dict[str, bytes]:
    return {"all.csv": "\n".join(["image,label", *(f"{path},cat" for path in paths(num))]).encode()}


def text(num: int) -> dict[str, bytes]:
    return {"all.txt": "\n".join(f"{path} cat" for path in paths(num)).encode()}


def yolo(num: int) -> dict[str, bytes]:
    return {f"labels/{path.removeprefix('photos/').removesuffix('jpg')}txt": b"0 0.5 0.5 0.5 0.5" for path in paths(num)}


def masks(num: int) -> dict[str, bytes]:
    return {f"masks/{path.removeprefix('photos/').removesuffix('jpg')}png": encode(np.zeros((8, 8), np.uint8), "PNG") for path in paths(num)}


# Maps each source to the function that writes its annotations, the suffix of its input and the folder of its images.
SOURCES = {
    "coco": (coco, "/all.json", "photos"),
    "voc": (voc, "", "photos"),
    "table": (table, "/all.csv", "photos"),
    "text": (text, "/all.txt", "photos"),
    "masks": (masks, "", "images"),
    "yolo": (yolo, "", "images"),
}


# Sources alternate between the two kinds of object stores.
EACH_SOURCE = pytest.mark.parametrize("kind, proxied", [*zip(SOURCES, ("s3", "gs", "s3", "gs", "s3", "gs"))], indirect=["proxied"])


def put_source(bucket: str, kind: str, num: int, missing: str = "") -> str:
    make, name, folder = SOURCES[kind]
    objects = {path.replace("photos", folder, 1): jpeg(index) for index, path in enumerate(paths(num)) if path != missing}
    for path, data in {**make(num), **objects}.items():
        files_at(bucket).write(f"{bucket}/{path}", data)
    return f"{bucket}{name}"


def list_requests(faults: Faults, call: list[str]) -> list[tuple[str, str]]:
    """Returns the requests of a command, except requests for the annotation of a single image."""
    start = len(faults.seen)
    assert main(call) == 0
    return [(method, path) for method, path, _ in faults.seen[start:] if not urllib.parse.urlsplit(path).path.endswith((".xml", ".txt"))]


@pytest.mark.slow
@EACH_SOURCE
def test_number_of_requests_does_not_grow_with_images(proxied, kind, capsys):
    server, faults = proxied
    requests = {}
    for num in (10, 30):
        bucket = server.make_bucket()
        source = put_source(bucket, kind, num)
        call = ["prepare", f"--input={source}", f"--source={kind}", f"--output={bucket}-out/out", "--estimate", *server.flags]
        requests[num] = list_requests(faults, call)
        num_bytes = sum(len(jpeg(index)) for index in range(num))
        printed = capsys.readouterr().out
        assert f"images:    {num}" in printed and "assumed" not in printed, printed
        assert f"read:      {format_size(num_bytes)} " in printed, printed
    assert len(requests[30]) == len(requests[10]) < 20, {num: len(some) for num, some in requests.items()}


@pytest.mark.slow
@pytest.mark.parametrize("proxied", ["gs"], indirect=True)
def test_guess_lists_each_folder_and_reads_each_file_once(proxied):
    server, faults = proxied
    bucket = server.make_bucket()
    for index in range(7):
        server.write(f"{bucket}/pets/Annotations/{index}.xml", XML.format(index).encode())
        server.write(f"{bucket}/pets/JPEGImages/{index}.jpg", jpeg(index))
    start = len(faults.seen)
    assert guess_source(f"{bucket}/pets").kind.name == "voc"
    requests = [(method, path) for method, path, _ in faults.seen[start:]]
    assert len(requests) == len(set(requests)) <= 9, requests


@pytest.mark.slow
@pytest.mark.parametrize("kind, proxied", [("coco", "gs"), ("table", "s3"), ("text", "gs")], indirect=["proxied"])
def test_missing_image_is_a_dead_letter(proxied, kind, tmp_path):
    server, _ = proxied
    missing = paths(20)[7]
    source = put_source(server.make_bucket(), kind, 20, missing)
    call = ["prepare", f"--input={source}", f"--source={kind}", f"--output={tmp_path}/out", "--max_bad_fraction=0.1", *server.flags]
    assert main([*call, "--check=header"]) == 0
    (letter,) = map(json.loads, pathlib.Path(tmp_path, "out/dead_letters.jsonl").read_text().splitlines())
    assert (letter["path"], letter["stage"], letter["reason"]) == (missing, "read", "unreadable"), letter
    assert "does not exist" in letter["message"]


NAMES = [f"{folder}/{index:02d}.jpg" for folder in ("a", "b", "b-b", "b.b", "ba", "é", "日本", "\U0001f600") for index in range(12)]
SIZES = {name: index % 90 for index, name in enumerate([*NAMES, *("beside/" + name for name in NAMES[:3]), "b0", "ba/0"])}


@pytest.fixture(scope="module")
def many_objects(proxied) -> tuple[str, Faults]:
    server, faults = proxied
    root = f"{server.make_bucket()}/heap"
    for name, num_bytes in SIZES.items():
        files_at(root).write(f"{root}/{name}", bytes(num_bytes))
    return root, faults


REQUESTED = {
    "all": NAMES,
    "single name": NAMES[27:28],
    "first name": NAMES[:1],
    "last name": NAMES[-1:],
    "names from each folder": NAMES[::17],
    "two distant names": [NAMES[3], NAMES[-3]],
    "folder after many names": [name for name in NAMES if name.startswith("b.b/")],
    "short name after more than a page": ["b0"],
    "only missing names": ["0", "a", "a/", "b/05.jpgx", "zz/1.jpg", "\U0010ffff"],
    "some missing names": ["a/03.jpg", "a/03.jpg2", "b/", "b/39.jpg", "b0", "~"],
    "no names": [],
}


@pytest.mark.slow(0.1)
@pytest.mark.parametrize("num_at_once", [4, 1000])
@pytest.mark.parametrize("case", REQUESTED)
def test_finds_sizes_with_few_requests(many_objects, monkeypatch, case, num_at_once):
    root, faults = many_objects
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", num_at_once)
    names, start = REQUESTED[case], len(faults.seen)
    assert find_sizes(root, [*reversed(names), *names[:2]]) == {name: SIZES[name] for name in names if name in SIZES}
    num_pages = -(-len(SIZES) // num_at_once)
    assert len(faults.seen) - start <= min(num_pages + 1, len(names)), "at most one request per page or name"


def test_few_names_need_no_full_listing(many_objects, monkeypatch):
    root, faults = many_objects
    monkeypatch.setattr(object_listing, "PAGE_OBJECTS", 4)
    start = len(faults.seen)
    assert len(find_sizes(root, [NAMES[10], NAMES[40], NAMES[90]])) == 3
    assert len(faults.seen) - start == 3, "a full listing has 26 pages"


def test_local_sizes_exclude_folders_and_missing_files(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.jpg").write_bytes(b"12345")
    (tmp_path / "link.jpg").symlink_to("a.jpg")
    assert find_sizes(str(tmp_path), ["a.jpg", "link.jpg", "folder", "none.jpg", "a.jpg/b"]) == {"a.jpg": 5, "link.jpg": 5}


@pytest.mark.slow(0.7)
@EACH_SOURCE
def test_each_listed_image_has_its_size(proxied, kind):
    server, _ = proxied
    bucket = server.make_bucket()
    config = PrepareOptions(put_source(bucket, kind, 12), "out", "made", source=SourceConfig(kind=find_kind(kind)))
    source = open_source(config)
    listed = [image for part in source.parts() for image in add_sizes(source.list(part), source.root)]
    assert len(listed) == 12
    for image in listed:
        assert isinstance(image, InputRecord)
        assert image.num_bytes == files_at(bucket).size(f"{source.root}/{image.path}")
