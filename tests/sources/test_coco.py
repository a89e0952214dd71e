"""Tests that the source `coco` reads annotations and masks from common file layouts, and rejects invalid JSON."""

import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import sys
import tracemalloc
import unicodedata
from typing import Any, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO

import tf_input

from beam_pipelines.__main__ import main
from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.annotations import Objects, Regions
from beam_pipelines.sources.annotations.json_stream import open_json, read_entries
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.make_listing import make_listing
from beam_pipelines.sources.guess import guess_source
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.registry import find_kind
from listed import Listing, open_kind
from made_images import encode, jpeg, write_files

IMAGE = b"not looked at"
SQUARE = [[1, 1, 5, 1, 5, 5, 1, 5]]


def image(image_id: Any = 1, file_name: Any = "a.jpg", **more: Any) -> dict[str, Any]:
    return {"id": image_id, "file_name": file_name, "width": 60, "height": 50, "license": 3, **more}


def annotation(image_id: Any = 1, box: Any = (1, 2, 30, 40), category_id: Any = 1, **more: Any) -> dict[str, Any]:
    return {"id": 7, "image_id": image_id, "category_id": category_id, "bbox": box, "iscrowd": 0, **more}


def instances(
    images: list | None = None, annotations: list | None = None, categories: list | None = None, **more: Any
) -> dict:
    return {
        "info": {"year": 2017, "deep": [{"images": [1]}]},
        "images": [image()] if images is None else images,
        "annotations": [annotation()] if annotations is None else annotations,
        "categories": [{"id": 1, "name": "cat", "supercategory": "animal"}] if categories is None else categories,
        **more,
    }


def list_coco(path: str | os.PathLike[str], **options: Any) -> Listing:
    return Listing(path, "coco", **options)


def write_json(path: pathlib.Path, content: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def list_json(tmp_path: pathlib.Path, content: Any, **options: Any) -> Listing:
    return list_coco(write_json(tmp_path / "in.json", content), **options)


# Content of a file


def test_reads_boxes_labels_and_sizes(tmp_path):
    content = instances(
        [image(9, "a.jpg"), image(4, "b/ä.jpg", width=0, height=0), image(5, "c.jpg")],
        [
            annotation(4, [10, 20, 5.5, 6], 3),
            annotation(9, [0, 0, 60, 50], 1),
            annotation(4, [1, 2, 3, 4], 1, iscrowd=1),
        ],
        [{"id": 3, "name": "dog"}, {"id": 1, "name": " cat "}, {"id": 2, "name": "7"}],
    )
    listed = list_json(tmp_path, content)
    assert listed.objects("a.jpg") == Objects(((0.0, 0.0, 50.0, 60.0),), ("cat",), {"is_crowd": (0,)}, (50, 60))
    both = ((20.0, 10.0, 26.0, 15.5), (2.0, 1.0, 6.0, 4.0))
    assert listed.objects("b/ä.jpg") == Objects(both, ("dog", "cat"), {"is_crowd": (0, 1)}, None)
    assert listed.objects("c.jpg") == Objects((), (), {"is_crowd": ()}, (50, 60))
    assert listed.label_names == {("cat", "7", "dog")} and not listed.letters


def test_unused_fields_are_reported(tmp_path, capsys):
    more = [annotation(area=7, segmentation=[SQUARE]), annotation(**{"oddly\nnamed": 1}), annotation(area=8)]
    write_json(tmp_path / "in" / "in.json", instances(annotations=more))
    write_files(tmp_path / "in", {"a.jpg": jpeg(1, 50, 60)})
    assert main(["prepare", f"--input={tmp_path}/in/in.json", "--source=coco", f"--output={tmp_path}/out", "--splits=train=1"]) == 0
    assert " area, oddly\\nnamed, segmentation\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/statistics.json").read_text())["unused_fields"] == ["area", "oddly\\nnamed", "segmentation"]
    for options, expected in (({"has_masks": True}, {"oddly\\nnamed"}), ({"labels": ()}, set())):
        source = open_kind(tmp_path / "in/in.json", "coco", options)
        list(source.list(*source.parts()))
        assert source.unused_fields.names == expected, options


def test_unused_fields_are_limited_to_the_first_100():
    names, several = [f"{number:05d}" for number in range(1000)], [UnusedFields(), UnusedFields()]
    for index, order in enumerate((names, names[::-1])):
        several[index].add(order)
    several[0].merge(several[1])
    assert several[0].names == several[1].names == set(names[:100])


def test_sections_may_have_any_order(tmp_path):
    content = instances(
        [image(1), image("two", "b.jpg")], [annotation("two", category_id="x")], [{"id": "x", "name": "cat"}]
    )
    expected = list_json(tmp_path, content).images
    for names in (["annotations", "images", "categories"], ["categories", "annotations", "info", "images"]):
        assert list_json(tmp_path, {name: content[name] for name in names}).images == expected, names


def test_section_may_be_an_object(tmp_path):
    """LIVECell stores its annotations in a JSON object whose keys are the annotation ids."""
    content = instances([image(), image(2, "b.jpg")], [annotation(), annotation(2), annotation(2, [0, 0, 1, 1])])
    expected = list_json(tmp_path, content).images
    named = {
        name: {str(number): entry for number, entry in enumerate(content[name])}
        for name in ("images", "annotations", "categories")
    }
    assert list_json(tmp_path, content | named).images == expected
    assert list_json(tmp_path, content | {"annotations": {"1": annotation(), "2": 5}}).reasons == {
        "in.json#/annotations/2": "bad_annotation"
    }


@pytest.mark.parametrize("written", [7.0, "7"])
def test_ids_may_be_written_as_numbers_or_strings(written, tmp_path):
    content = instances(
        [image(7, "a.jpg"), image(8.0, "b.jpg")],
        [annotation(written, category_id=written), annotation("8", category_id=10)],
        [{"id": "10", "name": "cat"}, {"id": 7, "name": "dog"}],
    )
    listed = list_json(tmp_path, content)
    assert not listed.letters and listed.label_names == {("dog", "cat")}
    assert (listed.objects("a.jpg").labels, listed.objects("b.jpg").labels) == (("dog",), ("cat",))


def test_null_means_that_an_optional_field_is_missing(tmp_path):
    entry = annotation(iscrowd=None, area=None, segmentation=SQUARE)
    listed = list_json(tmp_path, instances([image(width=None, height=None)], [entry]))
    assert listed.objects("a.jpg").flags == {"is_crowd": (0,)} and listed.objects("a.jpg").image_size is None
    assert set(list_json(tmp_path, instances([image()], [entry]), source={"has_masks": True}).images) == {"a.jpg"}


# Roboflow's files begin with a parent category that has no objects.
ROOT = {"id": 0, "name": "fish", "supercategory": "none"}
PIKE, PERCH = ({"id": number, "name": name, "supercategory": "fish"} for number, name in ((1, "pike"), (2, "perch")))
OWN = {"id": 5, "name": "person", "supercategory": "person"}  # as in the files of COCO


@pytest.mark.parametrize(
    "categories, used, expected",
    [
        ([ROOT, PIKE, PERCH], [1, 2], ("pike", "perch")),
        ([ROOT, PIKE, PERCH], [0, 2], ("fish", "pike", "perch")),  # the parent category has objects, so it is a class
        (
            [ROOT | {"name": "pike"}, PIKE | {"supercategory": "pike"}, PERCH | {"supercategory": "pike"}],
            [1, 2],
            ("pike", "perch"),
        ),
        ([OWN, PIKE, PERCH], [2], ("pike", "perch", "person")),
        ([{"id": 3, "name": "a"}, {"id": 4, "name": "b"}, {"id": 5, "name": "a"}], [4, 5], ("a", "b")),
        (
            [PIKE, ROOT | {"id": 7}, PERCH, {"id": 9, "name": "bird", "supercategory": None}],
            [1],
            ("pike", "perch", "bird"),
        ),
    ],
)
def test_unused_parent_category_is_not_a_class(categories, used, expected, tmp_path):
    for position, category_ids in enumerate((used, used[-1:])):  # the second file does not use all categories
        name = ("train", "valid")[position]
        content = instances(annotations=[annotation(category_id=item) for item in category_ids], categories=categories)
        write_json(tmp_path / f"annotations/instances_{name}.json", content)
    config = PrepareOptions(os.fspath(tmp_path), "out", "made", source=SourceConfig(kind=find_kind("coco")))
    actual = ListedFacts()
    for part in open_source(config).parts():
        listed, source = ListedFacts(), open_source(config)
        list(list_part(source, part, listed))
        actual.merge(listed)
    listing = make_listing(config, open_source(config), actual)
    (label,) = [feature for feature in listing.schema if feature.name == "objects/label"]
    assert label.label_names == expected
    is_dropped = len(expected) < len({category["name"] for category in categories})
    assert not listing.warnings and listing.unused_categories == ("fish",) * is_dropped


def test_summary_names_categories_that_only_group_others(tmp_path, capsys):
    write_json(tmp_path / "in" / "in.json", instances(annotations=[annotation(category_id=PIKE["id"])], categories=[ROOT, PIKE, PERCH]))
    write_files(tmp_path / "in", {"a.jpg": jpeg(1, 50, 60)})
    command = ["prepare", f"--input={tmp_path}/in/in.json", "--source=coco", f"--output={tmp_path}/out", "--splits=train=1", "--no_report"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if "fish" in line and "--" not in line] and "warning" not in printed.err
    assert json.loads((tmp_path / "out/statistics.json").read_text())["unused_categories"] == ["fish"]
    assert main(["verify", f"{tmp_path}/out"]) == 0


def test_accepts_a_byte_order_mark_and_crlf(tmp_path):
    assert set(
        list_json(tmp_path, b"\xef\xbb\xbf \r\n" + json.dumps(instances(), indent=1).encode() + b"\r\n").images
    ) == {"a.jpg"}


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_annotations_are_grouped_by_image_as_by_pycocotools(tmp_path_factory, data):
    ids = data.draw(st.lists(st.integers(0, 10**12), unique=True, max_size=6))
    number = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)
    boxes = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.tuples(*[number] * 4)), max_size=20)) if ids else []
    content = instances(
        [image(entry, f"{entry}.jpg") for entry in ids],
        [annotation(element, box) | {"id": at} for at, (element, box) in enumerate(boxes)],
    )
    path = write_json(tmp_path_factory.mktemp("in") / "in.json", content)
    listed, peer = list_coco(path), COCO(os.fspath(path))
    assert set(listed.images) == {f"{item}.jpg" for item in ids}
    for member in ids:
        expected = [peer_box["bbox"] for peer_box in peer.loadAnns(peer.getAnnIds(imgIds=[member]))]
        assert [list(box) for box in listed.objects(f"{member}.jpg").boxes] == [
            [y, x, y + h, x + w] for x, y, w, h in expected
        ]


# Further entries of `images`, and the reason for their dead letters.
BAD_IMAGES = {
    "not an object": ([5, None, [image(2)]], "bad_image_entry"),
    "no id": ([{"file_name": "b.jpg"}], "bad_image_entry"),
    "invalid id": ([image(True, "b.jpg"), image([3], "c.jpg")], "bad_image_entry"),
    "no name": ([image(2, None)], "bad_image_entry"),
    "invalid name": ([image(2, {"a": 1}), image(3, "")], "bad_image_entry"),
    "size as a string": ([image(2, "b.jpg", width="60")], "bad_image_entry"),
    "fractional size": ([image(2, "b.jpg", height=50.5)], "bad_image_entry"),
    "negative size": ([image(2, "b.jpg", height=-50)], "bad_image_entry"),
    "three images with the same id": ([image(2, f"{n}.jpg") for n in "bcd"], "duplicate"),
    "relative path to outside": ([image(2, "../b.jpg"), image(3, "c/../../c.jpg")], "outside"),
    "absolute path or Windows path": ([image(2, "/etc/passwd"), image(3, "..\\c.jpg")], "outside"),
    "URL": ([image(2, "http://localhost/b.jpg")], "outside"),
    "name with a NUL": ([image(2, "b\0.jpg")], "outside"),
    "too long name": ([image(2, "b" * 10_000)], "bad_value"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_bad_image_entry_is_a_dead_letter(case, tmp_path):
    images, reason = BAD_IMAGES[case]
    has_annotation = any(isinstance(item, dict) and item.get("id") == 2 for item in images)
    listed = list_json(tmp_path, instances([image(), *images], [annotation(1), *([annotation(2)] if has_annotation else [])]))
    is_in_file = reason in ("bad_image_entry", "duplicate")
    paths = [f"in.json#/images/{at}" if is_in_file else printable(item["file_name"][:4096]) for at, item in enumerate(images, 1)]
    assert set(listed.images) == {"a.jpg"} and listed.reasons == dict.fromkeys(paths, reason)
    assert all(letter.message.isprintable() and len(letter.message) < 500 for letter in listed.letters.values())


BAD_ANNOTATIONS = {
    "no box": ({"image_id": 1, "category_id": 1, "segmentation": []}, "bad_annotation", "has no 'bbox'"),
    "missing box": (annotation(box=None), "bad_annotation", "'bbox' is None"),
    "empty box": (annotation(box=[]), "bad_annotation", "'bbox' is []"),
    "box with five numbers": (annotation(box=[1, 2, 3, 4, 5]), "bad_annotation", "'bbox' is [1, 2, 3, 4, 5]"),
    "box with a string": (annotation(box=["1", 2, 3, 4]), "bad_annotation", "'bbox'"),
    "box with a boolean": (annotation(box=[True, 2, 3, 4]), "bad_annotation", "'bbox'"),
    "box with an infinite side": (annotation(box=[1.7e308, 0, 1.7e308, 1]), "bad_annotation", "'bbox' is"),
    "nested box": (annotation(box=[[[[[[[1]]]]]], 2, 3, 4]), "bad_annotation", "'bbox'"),
    "unknown category": (annotation(category_id=99), "bad_label", "category 99 "),
    "missing category": ({"image_id": 1, "bbox": [1, 2, 3, 4]}, "bad_label", "'category_id' is None"),
    "invalid category id": (annotation(category_id=[1]), "bad_label", "'category_id' is [1]"),
    "invalid crowd flag": (annotation(iscrowd=2), "bad_annotation", "'iscrowd' is 2"),
}


@pytest.mark.parametrize("case", BAD_ANNOTATIONS)
def test_image_with_a_bad_annotation_is_a_dead_letter(case, tmp_path):
    bad, reason, message = BAD_ANNOTATIONS[case]
    content = instances([image(), image(2, "b.jpg")], [annotation(2), annotation(), bad, annotation(2)])
    listed = list_json(tmp_path, content)
    assert set(listed.images) == {"b.jpg"} and len(listed.objects("b.jpg").boxes) == 2
    assert listed.reasons == {"a.jpg": reason}
    assert message in listed.letters["a.jpg"].message and len(listed.letters["a.jpg"].message) < 300


@pytest.mark.parametrize("num_images", [1, 250])
def test_classes_of_entire_images_are_rejected_with_advice(num_images, tmp_path):
    """In iNaturalist's files, each image has one annotation with a category but no box."""
    images = [image(number, f"{number}.jpg") for number in range(num_images)]
    classes = [{"id": number, "image_id": number, "category_id": 1} for number in range(num_images)]
    with pytest.raises(UserError, match="docs/how_to/tables.md"):
        list_json(tmp_path, instances(images, classes))
    listed = list_json(tmp_path, instances(images, [*classes[:-1], annotation(num_images - 1)]) if num_images == 1 else instances(images, [annotation(0), *classes[1:]]))
    assert len(listed.images) == 1 and len(listed.letters) == num_images - 1


def test_annotations_of_a_missing_image_are_one_dead_letter(tmp_path):
    content = instances(annotations=[annotation(), annotation(5), annotation(6), annotation(5), {"bbox": [1]}, 3])
    listed = list_json(tmp_path, content)
    assert set(listed.images) == {"a.jpg"}
    assert listed.reasons == {
        "in.json#/annotations/1": "no_image",
        "in.json#/annotations/2": "no_image",
        "in.json#/annotations/4": "bad_annotation",
        "in.json#/annotations/5": "bad_annotation",
    }


SAME_NAMES = instances(
    annotations=[annotation(), annotation(category_id=2)], categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "cat "}]
)
REJECTED = {
    "not JSON": (b"<html>", "in.json: not valid JSON"),
    "empty file": (b"", "not valid JSON"),
    "truncated": (json.dumps(instances()).encode()[:-40], "not valid JSON"),
    "trailing text": (json.dumps(instances()).encode() + b" x", "not valid JSON"),
    "not UTF-8": (b'{"images": [{"id": 1, "file_name": "\xff"}], "annotations": [], "categories": []}', "not valid JSON"),
    "NaN": (json.dumps(instances(annotations=[annotation(box=[math.nan, 1, 2, 3])])).encode(), "not valid JSON"),
    "number with a million digits": (b'{"images": [{"id": ' + b"9" * 10**6 + b"}]}", "not valid JSON"),
    "too large number": (b'{"images": [{"id": 1e999}]}', "not valid JSON"),
    "list": ([instances()], "not a JSON object"),
    "number": (5, "not a JSON object"),
    "no images": ({"annotations": [], "categories": []}, "no 'images'"),
    "no annotations": ({"images": [image()], "categories": []}, "no 'annotations'.*--label none"),
    "no categories": ({"images": [], "annotations": []}, "no 'categories'"),
    "section with a string": (instances() | {"images": "a.jpg"}, "'images'"),
    "panoptic file": (instances(annotations=[{"image_id": 1, "segments_info": []}]), "--masks"),
    "captions": (instances(annotations=[{"image_id": 1, "caption": "a cat"}]), "--label captions"),
    "two used categories with the same name": (SAME_NAMES, "'cat'"),
    "boxes between 0 and 1": (instances(annotations=[annotation(box=[0.1, 0.2, 0.3, 0.8]), annotation(box=[0, 0.5, 1, 0.5])]), "pixels"),
    "duplicate category id": (instances(categories=[{"id": 1, "name": "cat"}, {"id": 1.0, "name": "dog"}]), "id 1"),
    "file name not UTF-8": (b'{"images": [{"id": 1, "file_name": "\xed\xa0\x80.jpg"}], "annotations": [], "categories": []}', "not UTF-8"),
    "duplicate section": (json.dumps(instances()).encode()[:-1] + b', "images": []}', "'images'"),
    "duplicate field": (b'{"images": [{"id": 1, "id": 2}], "annotations": [], "categories": []}', "'id'"),
    "duplicate nested field": (b'{"annotations": [{"image_id": 1, "bbox": {"x": 1, "x": 2}}], "images": [], "categories": []}', "'x'"),
    "category without a name": (instances(categories=[{"id": 1}]), "id 1"),
    "category name with a newline": (instances(categories=[{"id": 1, "name": "a\nb"}]), "category 0"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejects_invalid_coco_files(case, tmp_path):
    content, message = REJECTED[case]
    with pytest.raises(UserError) as caught:
        list_json(tmp_path, content)
    assert re.search(message, str(caught.value)) and str(caught.value).isprintable() and len(str(caught.value)) < 500


@contextlib.contextmanager
def at_most_calls(limit: int) -> Iterator[None]:
    """Context manager that raises AssertionError if its block calls more than `limit` Python or C functions."""
    calls = itertools.count()

    def count(unused_frame: Any, event: str, unused_argument: Any) -> None:
        if event.endswith("call"):
            assert next(calls) < limit, f"more than {limit} calls"

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.slow(0.4)
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("location", ["info", "images", "annotations", "bbox"])
def test_deep_nesting_takes_linear_time(opening, location, tmp_path):
    depth = 100_000
    deep = opening * depth + b"1" + {b"[": b"]", b'{"a":': b"}"}[opening] * depth
    content = json.dumps(instances(annotations=[annotation(box="HERE")] if location == "bbox" else None)).encode()
    if location == "bbox":
        content = content.replace(b'"HERE"', deep)
    elif location == "info":
        content = content.replace(b"{", b'{"info": ' + deep + b",", 1)
    else:
        content = content.replace(b'"%s": [' % location.encode(), b'"%s": [%s, ' % (location.encode(), deep))
    with at_most_calls(20 * depth):
        listed = list_json(tmp_path, content)
    expected = {"info": {}, "bbox": {"a.jpg": "bad_annotation"}}
    reasons = {"images": "bad_image_entry", "annotations": "bad_annotation"}
    assert listed.reasons == expected.get(location, {f"in.json#/{location}/0": reasons.get(location)})


def test_too_deeply_nested_value_is_read_as_null(tmp_path):
    path = write_json(tmp_path / "in.json", [{"x": [[[[[1], 2]]]], "y": {"z": [1]}}])
    with open_json(str(path), "in.json") as events:
        event, _ = next(events)
        assert list(read_entries(events, event, depth=5)) == [("0", {"x": [[[[None, 2]]]], "y": {"z": [1]}})]


@pytest.mark.slow(1)
def test_listing_needs_little_memory(tmp_path):
    num = 2000
    with open(tmp_path / "in.json", "w") as file:
        file.write('{"annotations": [')
        entry = json.dumps(annotation("ID", segmentation=[[0.5] * 100], caption="x" * 200)).replace('"ID"', "%d")
        file.write(",".join(entry % (number % 1000) for number in range(num)))
        file.write('], "categories": [{"id": 1, "name": "cat"}], "images": [')
        file.write(",".join(json.dumps(image(number, f"{number}.jpg", url="x" * 500)) for number in range(1000)) + "]}")
    source = open_kind(tmp_path / "in.json", "coco")
    [part] = source.parts()
    tracemalloc.start()
    try:
        assert sum(len(result.values["objects"].boxes) for result in source.list(part)) == num
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < num * 150 + 2_500_000, peak  # these annotations take 10 MB as Python objects


# Layouts of files


LAYOUTS = {
    "images beside the file": ("some.json", "a.jpg"),
    "COCO": ("annotations/instances_val2017.json", "val2017/a.jpg"),
    "COCO with an images folder": ("annotations/instances_val2017.json", "images/val2017/a.jpg"),
    "COCO keypoints": ("annotations/person_keypoints_val2017.json", "val2017/a.jpg"),
    "CVAT": ("annotations/instances_default.json", "images/a.jpg"),
    "images in the parent folder": ("annotations/instances_default.json", "a.jpg"),
    "images beside the file in a folder": ("annotations/instances_default.json", "annotations/a.jpg"),
    "Roboflow": ("_annotations.coco.json", "a.jpg"),
    "another name": ("labels/cells.json", "images/a.jpg"),
    "images in the folder of annotations": ("coco/cells.json", "coco/images/a.jpg"),
    "Label Studio": ("result.json", "images/a.jpg"),
    "a folder with the split's name": ("annotations/train.json", "train_images/a.jpg"),
}

# Files of splits, and their images.
SPLIT_LAYOUTS = {
    "beside the images": ("{}.json", "{}/a.jpg"),
    "in a folder": ("labels/{}.json", "images/{}/a.jpg"),
    "split in the name": ("annotations/cells_{}.json", "images/a_{}.jpg"),
    "in folders of images": ("{}/annotations.json", "{}/images/a.jpg"),
    "Roboflow": ("{}/_annotations.coco.json", "{}/a.jpg"),
}


@pytest.mark.parametrize("layout", SPLIT_LAYOUTS)
def test_any_file_with_the_name_of_a_split_is_found(layout, tmp_path):
    name, path = SPLIT_LAYOUTS[layout]
    for split in ("train", "val"):
        write_files(tmp_path, {path.format(split): IMAGE})
        write_json(tmp_path / name.format(split), instances([image(1, path.format(split).rpartition("/")[2])]))
    assert list_coco(tmp_path).splits == {path.format("train"): "train", path.format("val"): "validation"}
    assert guess_source(str(tmp_path)).kind.name == "coco"


def test_rejects_several_files_that_are_not_splits(tmp_path):
    for name in ("old.json", "new.json"):
        write_json(tmp_path / name, instances())
    with pytest.raises(UserError, match="--input=FILE.json"):
        list_coco(tmp_path)


# File names from other machines, the path of the image, and the start of the file names that is ignored.
OTHER_MACHINES = {
    "absolute": ("/home/me/data/{}.jpg", "images/{}.jpg", "/home/me/data/"),
    "Windows": ("C:\\data\\train\\{}.jpg", "train/{}.jpg", "C:/data/"),
    "other folders": ("upload/1/{}.jpg", "{}.jpg", "upload/1/"),
    "backslashes": ("images\\{}.jpg", "images/{}.jpg", ""),
}


@pytest.mark.parametrize("case", OTHER_MACHINES)
def test_file_names_of_other_machines_are_matched_by_their_last_parts(case, tmp_path):
    stated, path, prefix = OTHER_MACHINES[case]
    write_files(tmp_path, {path.format(name): IMAGE for name in "ab"})
    more = [image(3, "/elsewhere/c.jpg")] if prefix else []
    write_json(tmp_path / "in.json", instances([image(1, stated.format("a")), image(2, stated.format("b")), *more]))
    listed = list_coco(tmp_path / "in.json")
    assert set(listed.images) == {path.format(name) for name in "ab"} and set(listed.reasons.values()) == {"outside"} - {"" if prefix else "outside"}
    assert [(num, prefix in fact) for fact, num in listed.noted.items()] == ([(2, True)] if prefix else [])


def test_file_names_are_matched_below_image_root(tmp_path):
    write_files(tmp_path, {"train2017/a.jpg": IMAGE})
    write_json(tmp_path / "in.json", instances([image(1, "train2017/a.jpg")]))
    assert set(list_coco(tmp_path / "in.json", source={"image_root": str(tmp_path / "train2017")}).images) == {"a.jpg"}


@pytest.mark.parametrize("links", [{"coco_url": "http://images.cocodataset.org/train2017/a%20b.jpg"}, {"flickr_url": "https://x.org/1/a%20b.jpg?size=2"}])
def test_link_without_a_file_name_names_the_file(links, tmp_path):
    write_files(tmp_path, {"a b.jpg": IMAGE})
    entry = image(**links)
    del entry["file_name"]
    assert set(list_json(tmp_path, instances([entry])).images) == {"a b.jpg"}


def test_images_without_annotations_need_label_none(tmp_path):
    content = {"images": [image(), image(2, "b.jpg")]}
    assert set(list_json(tmp_path, content, source={"labels": ()}).images) == {"a.jpg", "b.jpg"}


def test_captions_are_a_list_of_texts(tmp_path):
    rows = [{"id": 5, "image_id": 1, "caption": "a cat"}, {"image_id": 2, "caption": ""}, {"image_id": 1, "caption": "Eine Katze"}]
    content = {"images": [image(), image(2, "b.jpg"), image(3, "c.jpg")], "annotations": rows}
    write_json(tmp_path / "annotations/captions_val2017.json", content)
    write_json(tmp_path / "annotations/instances_val2017.json", instances())
    for listed in (list_coco(tmp_path / "annotations/captions_val2017.json"), list_coco(tmp_path, source={"labels": (Column("label", ("captions",)),)})):
        values = {path: item.values for path, item in listed.images.items()}
        assert values == {"a.jpg": {"captions": ("a cat", "Eine Katze")}, "c.jpg": {"captions": ()}} and listed.reasons == {"b.jpg": "bad_annotation"}
    assert listed.splits["a.jpg"] == "validation"
    assert list_coco(tmp_path).objects("a.jpg").labels == ("cat",)


@pytest.mark.slow(3)
def test_captions_reach_the_dataset(tmp_path):
    rows = [{"image_id": number // 2, "caption": f"caption {number}"} for number in range(8)]
    content = {"images": [image(number, f"{number}.jpg", width=16, height=16) for number in range(4)], "annotations": rows}
    write_files(tmp_path / "train2017", {f"{number}.jpg": jpeg(number, 16, 16) for number in range(4)})
    write_json(tmp_path / "annotations/captions_train2017.json", content)
    arguments = ["prepare", "--input", str(tmp_path / "annotations/captions_train2017.json"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main([*arguments, "--no_report"]) == 0
    examples = {example["key"]: example["captions"] for example in tf_input.open(str(tmp_path / "out"))["train"]}
    assert [item.decode() if isinstance(item, bytes) else item for item in list(examples.values())[0]][0].startswith("caption")
    assert len(examples) == 4 and all(len(captions) == 2 for captions in examples.values())


def panoptic(root: pathlib.Path, ids: np.ndarray) -> dict:
    """Writes the PNG of a panoptic annotation, and returns the annotation file."""
    colors = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=-1).astype(np.uint8)
    write_files(root, {"annotations/panoptic_train2017/1.png": encode(colors, "PNG"), "train2017/1.jpg": jpeg(1, 16, 16)})
    segments = [
        {"id": 70000, "category_id": 2, "bbox": [0, 0, 16, 8], "area": 128, "iscrowd": 0},
        {"id": 7, "category_id": 1, "bbox": [0, 8, 8, 8], "area": 64, "iscrowd": 0},
    ]
    rows = [{"image_id": 1, "file_name": "1.png", "segments_info": segments}]
    return instances([image(1, "1.jpg", width=16, height=16)], rows, [{"id": 1, "name": "cat"}, {"id": 2, "name": "grass"}])


@pytest.mark.slow(3)
def test_panoptic_masks_become_classes(tmp_path, capsys):
    ids = np.zeros((16, 16), np.int64)
    ids[:8], ids[8:, :8] = 70000, 7
    path = tmp_path / "annotations/panoptic_train2017.json"
    write_json(path, panoptic(tmp_path, ids))
    arguments = ["prepare", "--input", str(path), "--output", str(tmp_path / "out"), "--splits=train=1", "--no_report", "--overwrite"]
    assert main([*arguments, "--masks"]) == 0
    assert "0 background, 1 cat, 2 grass" in capsys.readouterr().out
    (example,) = tf_input.open(str(tmp_path / "out"))["train"]
    np.testing.assert_array_equal(np.squeeze(example["mask"]), np.select([ids == 70000, ids == 7], [2, 1], 0))
    assert example["objects"]["label"].tolist() == [1, 0]
    assert main(arguments) == 2 and "--masks" in capsys.readouterr().err
    write_json(path, panoptic(tmp_path, np.where(ids == 0, 9, ids)))
    assert main([*arguments, "--masks"]) == 2 and "the segment 9 at x 8, y 8" in capsys.readouterr().err
    (tmp_path / "annotations/panoptic_train2017/1.png").unlink()
    assert main([*arguments, "--masks"]) == 2 and "panoptic_train2017/" in capsys.readouterr().err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_finds_images_in_usual_layouts(layout, tmp_path):
    name, path = LAYOUTS[layout]
    write_files(tmp_path, {path: IMAGE})
    write_json(tmp_path / name, instances([image(0, "gone.jpg"), image(1)]))
    listed = list_coco(tmp_path / name)
    assert path in listed.images and len(listed.images) == 2
    assert listed.root == os.path.realpath(tmp_path) and listed.splits[path] is None
    if layout not in ("images beside the file", "COCO keypoints"):  # these names do not identify COCO
        folder = list_coco(tmp_path, split_folders=False)
        assert (folder.images, folder.label_names) == (listed.images, listed.label_names)


def test_accepts_a_relative_input_path(tmp_path, monkeypatch):
    write_files(tmp_path, {"train2017/a.jpg": IMAGE})
    write_json(tmp_path / "annotations/instances_train2017.json", instances())
    monkeypatch.chdir(tmp_path / "annotations")
    assert set(list_coco(pathlib.Path("instances_train2017.json")).images) == {"train2017/a.jpg"}


def test_error_names_a_file_deleted_after_it_was_found(tmp_path):
    write_json(write_files(tmp_path, {"a.jpg": IMAGE}) / "instances.json", instances())
    source = open_kind(tmp_path / "instances.json", "coco")
    (part,) = source.parts()
    (tmp_path / "instances.json").unlink()
    for look in (source.memory_bytes, lambda part: list(source.list(part))):
        with pytest.raises(UserError, match="instances.json.*No such file"):
            look(part)


def test_annotation_files_are_splits(tmp_path):
    names = {"train2014": "train", "train2017": "train", "val2017": "validation", "test": "test"}
    for name in names:
        write_files(tmp_path, {f"{name}/a.jpg": IMAGE})
        write_json(tmp_path / f"annotations/instances_{name}.json", instances())
    write_json(tmp_path / "annotations/captions_train2017.json", {"images": []})
    assert list_coco(tmp_path).splits == {f"{name}/a.jpg": split for name, split in names.items()}
    assert set(list_coco(tmp_path, split_folders=False).splits.values()) == {None}
    assert set(list_coco(tmp_path, ignore=("instances_t*",)).splits) == {"val2017/a.jpg"}


def test_rejects_files_if_only_some_are_named_like_splits(tmp_path):
    for name in ("train2017", "more2017"):
        write_json(tmp_path / f"annotations/instances_{name}.json", instances())
    with pytest.raises(UserError, match="'train' .* 'more2017' .*--split_folders"):
        list_coco(tmp_path)


def test_finds_images_by_names_in_another_unicode_normal_form(tmp_path):
    names = {form: f"{unicodedata.normalize(form, 'Löwe')}.jpg" for form in ("NFC", "NFD")}
    for item, other in (("NFC", "NFD"), ("NFD", "NFC")):
        write_files(tmp_path / item, {f"images/{names[item]}": IMAGE})
        path = write_json(tmp_path / item / "in.json", instances([image(file_name=names[other])]))
        assert set(list_coco(path).images) == {f"images/{names['NFC']}"}


@pytest.mark.parametrize("is_present", [True, False])
def test_missing_images_are_not_downloaded_from_coco_url(is_present, tmp_path):
    images = [image(number, f"{number}.jpg", coco_url=f"http://localhost/{number}.jpg") for number in range(3)]
    path = write_json(tmp_path / "in.json", instances(images, []))
    if is_present:
        write_files(tmp_path, {"images/1.jpg": IMAGE})
        assert set(list_coco(path).images) == {f"images/{number}.jpg" for number in range(3)}
    else:
        with pytest.raises(UserError, match="http://localhost/0.jpg.*--image_root"):
            list_coco(path)


def test_image_root_is_the_folder_of_the_images(tmp_path):
    write_json(
        tmp_path / "labels/in.json", instances([image(1, "x/a.jpg"), image(2, os.fspath(tmp_path / "images/b.jpg"))])
    )
    listed = list_coco(tmp_path / "labels/in.json", source={"image_root": os.fspath(tmp_path / "images")})
    assert (set(listed.images), listed.root) == ({"x/a.jpg", "b.jpg"}, os.path.realpath(tmp_path / "images"))
    with pytest.raises(UserError, match="--image_root=.* is a folder"):
        list_coco(tmp_path / "labels", source={"image_root": os.fspath(tmp_path)})


def test_rejects_links_to_outside_the_input(tmp_path):
    outside = write_files(tmp_path / "outside", {"b.jpg": IMAGE})
    write_json(outside / "instances_train.json", instances())
    root = write_files(tmp_path / "in", {"a.jpg": IMAGE})
    write_json(root / "annotations/instances_all.json", instances([image(), image(2, "b.jpg"), image(3, "f/b.jpg")]))
    (root / "b.jpg").symlink_to(outside / "b.jpg")
    (root / "f").symlink_to(outside)
    assert list_coco(root).reasons == {"b.jpg": "outside", "f/b.jpg": "outside"}
    (root / "annotations/instances_val.json").symlink_to(outside / "instances_train.json")
    with pytest.raises(UserError, match="annotations/instances_val.json.*--follow_links"):
        list_coco(root, split_folders=False)


def test_rejects_a_folder_without_annotations(tmp_path):
    with pytest.raises(UserError, match="annotations/.*--input"):
        list_coco(write_files(tmp_path, {"some.json": b"{}", "train/a.jpg": IMAGE}))


# Masks


def test_segmentations_become_regions_with_small_ones_last(tmp_path):
    runs, packed = {"size": [50, 60], "counts": [0, 3000]}, {"size": [50, 60], "counts": "PPYo1"}
    objects = [
        annotation(box=[0, 0, 4, 4], segmentation=SQUARE),  # without an area, the area of the box counts
        annotation(category_id=2, area=3000.0, segmentation=runs, iscrowd=1),
        annotation(2, segmentation=packed, area=1),
        annotation(area=16.5, segmentation=[[0.25, 1e-3, 7, 1.125, 3, 3], *SQUARE]),
        annotation(area=16.5, category_id=2, segmentation=SQUARE),
    ]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    listed = list_json(
        tmp_path,
        instances([image(), image(2, "b.jpg"), image(3, "c.jpg")], objects, categories),
        source={"has_masks": True},
    )
    assert listed.images["a.jpg"].values["mask"] == Regions(
        ("dog", "cat", "dog", "cat"), (runs, [[0.25, 1e-3, 7, 1.125, 3, 3], *SQUARE], SQUARE, SQUARE), (50, 60)
    )
    assert listed.objects("a.jpg").labels == ("cat", "dog", "cat", "dog")  # in the order of the file
    assert listed.images["b.jpg"].values["mask"] == Regions(("cat",), (packed,), (50, 60))
    assert listed.images["c.jpg"].values["mask"] == Regions((), (), (50, 60))


@pytest.mark.parametrize(
    "bad, entry, message",
    [
        ({"segmentation": None}, image(), "'segmentation' is None"),
        ({"segmentation": []}, image(), "'segmentation' is []"),
        ({"segmentation": "x"}, image(), "'segmentation' is 'x'"),
        ({"segmentation": SQUARE, "area": "4"}, image(), "'area' is '4'"),
        ({"segmentation": SQUARE}, image(height=0), "height"),
    ],
)
def test_invalid_segmentation_is_a_dead_letter(bad, entry, message, tmp_path):
    both = [annotation(**bad), annotation(2, segmentation=SQUARE)]
    listed = list_json(tmp_path, instances([entry, image(2, "b.jpg")], both), source={"has_masks": True})
    assert set(listed.images) == {"b.jpg"} and message in listed.letters["a.jpg"].message


def test_rejects_a_file_whose_outlines_are_all_empty(tmp_path):
    with pytest.raises(UserError, match="Omit --masks"):
        list_json(tmp_path, instances(annotations=[annotation(segmentation=[])]), source={"has_masks": True})


@pytest.mark.parametrize("segmentation", [json.dumps(SQUARE), SQUARE[0]], ids=["JSON in a text", "a single polygon"])
def test_segmentation_may_have_another_form(segmentation, tmp_path):
    listed = list_json(tmp_path, instances(annotations=[annotation(segmentation=segmentation)]), source={"has_masks": True})
    assert listed.images["a.jpg"].values["mask"].regions == (SQUARE,)
