"""Tests which files and splits an `--input` with braces or wildcards matches, on disk and in an object store."""

from typing import Iterator

import pytest
from test_array_record import write_array_record
from test_tfrecord import JPEG, detection_example, example, write
from test_webdataset import make_tar

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.sources.files.patterns import MAX_NAMES, expand_braces
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.sources.rows.containers import split_in_name
from beam_pipelines.sources.formats.tfrecord.tfrecord import TfRecord
from beam_pipelines.sources.formats.webdataset.webdataset import WebDataset
from made_images import write_files
from object_stores import StoreServer, connected_to, shared_server, upload_files


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("a.tar", ["a.tar"]),
        ("{08..11}.tar", ["08.tar", "09.tar", "10.tar", "11.tar"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("x{,.gz}", ["x", "x.gz"]),
    ],
)
def test_expands_braces(pattern, expected):
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize("pattern", ["{2..1}", f"{{0..{MAX_NAMES}}}", "{0..9999}{0..9999}", "{0..999999999}"])
def test_rejects_empty_and_too_large_brace_ranges(pattern):
    with pytest.raises(UserError):
        expand_braces(pattern)


NAMES = {
    "train-00000-of-00010": "train",
    "validation_3.tar": "validation",
    "my_test-train.tfrecord-00000-of-00016": "train",
    "val/0.tar": "validation",
    "train/val/0.tar": "validation",
    "x/Testing-1.tar": "test",
    "trainer.tar": None,
    "contest/0.tar": None,
    "0.tar": None,
}


def test_split_is_found_in_the_file_name():
    assert {name: split_in_name(name) for name in NAMES} == NAMES


@pytest.fixture(scope="module")
def server() -> Iterator[StoreServer]:
    with connected_to(shared_server("s3")) as server:
        yield server


SUFFIXES = ["", "/train-*", "/**/*.x", "/train-{0..1}.x", "/train-0.x", "/[!t]*/*.x", "/v?l/0.x"]


@pytest.mark.slow(1.5)
@pytest.mark.parametrize(("kind", "extension"), [("tfrecord", "tfrecord"), ("tfrecord", "array_record"), ("webdataset", "tar")])
def test_object_store_is_listed_like_a_local_folder(server, tmp_path, kind, extension):
    if kind == "tfrecord":
        writer = write_array_record if extension == "array_record" else write
        path = writer(tmp_path / "one", example(image=JPEG, label=1), example(image=JPEG), detection_example(1))
        contents, source = path.read_bytes(), TfRecord
    else:
        contents, source = make_tar([("a.jpg", JPEG), ("a.cls", b"1"), ("../b.jpg", JPEG)]), WebDataset
    names = [f"train-0.{extension}", f"train-1.{extension}", f"val/0.{extension}"]
    files = {**dict.fromkeys(names, contents), "README": b"#", ".x/0.tar": b"#"}
    folder = write_files(tmp_path / "in", files)
    root = upload_files(server, files)

    def list_input(location: object, suffix: str) -> list:
        config = PrepareOptions(f"{location}{suffix}", "out", "made", source=SourceConfig(kind=find_kind(kind)))
        opened = source(config)
        parts = opened.parts()
        return [*parts, *(item for part in parts for item in opened.list(part))]

    for suffix in (suffix.replace(".x", f".{extension}") for suffix in SUFFIXES):
        on_disk = list_input(folder, suffix)
        assert list_input(root, suffix) == on_disk and len(on_disk) >= 3, suffix
    for absent in ("/nothing", f"/nothing-*.{extension}", f"/nothing.{extension}"):
        with pytest.raises(UserError):
            list_input(root, absent)
