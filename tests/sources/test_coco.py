"""Source `coco`: every row of the table in its docstring, COCO's own layouts and others', and JSON that was made to do harm."""

import contextlib
import itertools
import json
import math
import os
import pathlib
import sys
import tracemalloc
import unicodedata
from typing import Any, Iterator, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO

from beam_pipelines.__main__ import main
from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects, Regions
from beam_pipelines.images.class_masks import draw_regions
from beam_pipelines.sources.annotated.coco import Coco
from beam_pipelines.sources.annotated.json_sections import read_sections
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.listed_part import ListedPart, list_part, make_listing
from made_images import jpeg, write_files

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


class Listed:
    """A whole listing, by parts, each from a source of its own as workers do it."""

    def __init__(
        self, path: os.PathLike[str], *, with_sizes: bool = False, source: Mapping[str, Any] = {}, **options: Any
    ) -> None:
        config = PrepareJob(os.fspath(path), "out", "made", source=SourceConfig("coco", **source), **options)
        self.images: dict[str, InputRecord] = {}
        self.letters: dict[str, DeadLetter] = {}
        self.label_names: list[tuple[str, ...]] = []
        self.num_ignored = 0
        for part in Coco(config).parts():
            lister = Coco(config, with_sizes=with_sizes)
            for result in lister.list(part):
                into, name = (self.letters, result.path) if isinstance(result, DeadLetter) else (self.images, result.key)
                assert name not in into
                into[name] = result
            self.label_names.append(lister.label_names()["objects/label"] if lister.features else ())
            self.num_ignored += lister.num_ignored
            self.root = lister.root

    @property
    def reasons(self) -> dict[str, str]:
        return {path: letter.reason for path, letter in self.letters.items()}

    @property
    def splits(self) -> dict[str, str | None]:
        return {key: image.split for key, image in self.images.items()}

    def objects(self, key: str) -> Objects:
        return self.images[key].values["objects"]


def write_json(path: pathlib.Path, content: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def list_json(tmp_path: pathlib.Path, content: Any, **options: Any) -> Listed:
    return Listed(write_json(tmp_path / "in.json", content), **options)


# What a file says


def test_boxes_labels_and_sizes(tmp_path):
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
    assert listed.label_names == [("cat", "7", "dog")] and not listed.letters


def test_fields_that_are_not_kept_are_told(tmp_path, capsys):
    more = [annotation(area=7, segmentation=[SQUARE]), annotation(**{"oddly\nnamed": 1}), annotation(area=8)]
    write_json(tmp_path / "in" / "in.json", instances(annotations=more))
    write_files(tmp_path / "in", {"a.jpg": jpeg(1, 50, 60)})
    assert main(["prepare", f"--input={tmp_path}/in/in.json", "--source=coco", f"--output={tmp_path}/out", "--splits=train=1"]) == 0
    assert "\nnot used:     the columns or fields area, oddly\\nnamed, segmentation\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/statistics.json").read_text())["unused_fields"] == ["area", "oddly\\nnamed", "segmentation"]
    for options, expected in (({"has_masks": True}, {"oddly\\nnamed"}), ({"labels": ()}, set())):
        source = Coco(PrepareJob(f"{tmp_path}/in/in.json", "out", "made", source=SourceConfig("coco", **options)))
        list(source.list(*source.parts()))
        assert source.unused_fields.names == expected, options


def test_of_very_many_fields_the_first_are_told():
    names, several = [f"{number:05d}" for number in range(1000)], [UnusedFields(), UnusedFields()]
    for index, order in enumerate((names, names[::-1])):
        several[index].add(order)
    several[0].merge(several[1])
    assert several[0].names == several[1].names == set(names[:100])


def test_sections_come_in_any_order(tmp_path):
    content = instances(
        [image(1), image("two", "b.jpg")], [annotation("two", category_id="x")], [{"id": "x", "name": "cat"}]
    )
    expected = list_json(tmp_path, content).images
    for names in (["annotations", "images", "categories"], ["categories", "annotations", "info", "images"]):
        assert list_json(tmp_path, {name: content[name] for name in names}).images == expected, names


def test_a_section_may_be_an_object_of_entries(tmp_path):
    """As LIVECell has its annotations, by their ids."""
    content = instances([image(), image(2, "b.jpg")], [annotation(), annotation(2), annotation(2, [0, 0, 1, 1])])
    expected = list_json(tmp_path, content).images
    named = {
        name: {str(number): entry for number, entry in enumerate(content[name])}
        for name in ("images", "annotations", "categories")
    }
    assert list_json(tmp_path, content | named).images == expected
    assert list_json(tmp_path, content | {"annotations": {"1": annotation(), "2": 5}}).reasons == {
        "in.json#/annotations/1": "bad_annotation"
    }


@pytest.mark.parametrize("written", [7.0, "7"])
def test_an_id_is_the_same_however_it_is_written(written, tmp_path):
    content = instances(
        [image(7, "a.jpg"), image(8.0, "b.jpg")],
        [annotation(written, category_id=written), annotation("8", category_id=10)],
        [{"id": "10", "name": "cat"}, {"id": 7, "name": "dog"}],
    )
    listed = list_json(tmp_path, content)
    assert not listed.letters and listed.label_names == [("dog", "cat")]
    assert (listed.objects("a.jpg").labels, listed.objects("b.jpg").labels) == (("dog",), ("cat",))


def test_null_means_that_an_optional_field_is_not_given(tmp_path):
    entry = annotation(iscrowd=None, area=None, segmentation=SQUARE)
    listed = list_json(tmp_path, instances([image(width=None, height=None)], [entry]))
    assert listed.objects("a.jpg").flags == {"is_crowd": (0,)} and listed.objects("a.jpg").image_size is None
    assert set(list_json(tmp_path, instances([image()], [entry]), source={"has_masks": True}).images) == {"a.jpg"}


# Roboflow's files begin with a category that only groups the others
ROOT = {"id": 0, "name": "fish", "supercategory": "none"}
PIKE, PERCH = ({"id": number, "name": name, "supercategory": "fish"} for number, name in ((1, "pike"), (2, "perch")))
OWN = {"id": 5, "name": "person", "supercategory": "person"}  # as COCO's own files have it


@pytest.mark.parametrize(
    "categories, used, expected",
    [
        ([ROOT, PIKE, PERCH], [1, 2], ("pike", "perch")),
        ([ROOT, PIKE, PERCH], [0, 2], ("fish", "pike", "perch")),  # a class after all
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
def test_a_category_that_only_groups_others_is_no_class(categories, used, expected, tmp_path):
    parts = []
    for position, category_ids in enumerate((used, used[-1:])):  # the second file does not use all categories
        name = ("train", "valid")[position]
        content = instances(annotations=[annotation(category_id=item) for item in category_ids], categories=categories)
        write_json(tmp_path / f"annotations/instances_{name}.json", content)
    config = PrepareJob(os.fspath(tmp_path), "out", "made", source=SourceConfig("coco"))
    actual = ListedPart()
    for part in Coco(config).parts():
        listed, source = ListedPart(), Coco(config)
        list(list_part(source, part, listed))
        actual.merge(listed)
    listing = make_listing(config, Coco(config), actual)
    (label,) = [feature for feature in listing.schema if feature.name == "objects/label"]
    assert label.label_names == expected
    is_dropped = len(expected) < len({category["name"] for category in categories})
    assert [line for line in listing.warnings if "--label_names" in line and "'fish'" in line] == list(listing.warnings)
    assert len(listing.warnings) == is_dropped


def test_a_file_of_another_system(tmp_path):
    assert set(
        list_json(tmp_path, b"\xef\xbb\xbf \r\n" + json.dumps(instances(), indent=1).encode() + b"\r\n").images
    ) == {"a.jpg"}


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_annotations_find_their_images_whatever_their_order(tmp_path_factory, data):
    """As pycocotools groups them."""
    ids = data.draw(st.lists(st.integers(0, 10**12), unique=True, max_size=6))
    number = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)
    boxes = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.tuples(*[number] * 4)), max_size=20)) if ids else []
    content = instances(
        [image(entry, f"{entry}.jpg") for entry in ids],
        [annotation(element, box) | {"id": at} for at, (element, box) in enumerate(boxes)],
    )
    path = write_json(tmp_path_factory.mktemp("in") / "in.json", content)
    listed, peer = Listed(path), COCO(os.fspath(path))
    assert set(listed.images) == {f"{item}.jpg" for item in ids}
    for member in ids:
        expected = [peer_box["bbox"] for peer_box in peer.loadAnns(peer.getAnnIds(imgIds=[member]))]
        assert [list(box) for box in listed.objects(f"{member}.jpg").boxes] == [
            [y, x, y + h, x + w] for x, y, w, h in expected
        ]


BAD_IMAGES = {
    "no object": ([image(), 5, None, [image(2)]], [f"in.json#/images/{at}" for at in (1, 2, 3)], "bad_image_entry"),
    "no id": ([image(), {"file_name": "b.jpg"}], ["in.json#/images/1"], "bad_image_entry"),
    "an id that is none": (
        [image(), image(True, "b.jpg"), image([3], "c.jpg")],
        ["in.json#/images/1", "in.json#/images/2"],
        "bad_image_entry",
    ),
    "no name": ([image(), image(2, None)], ["in.json#/images/1"], "bad_image_entry"),
    "a name that is none": (
        [image(), image(2, {"a": 1}), image(3, "")],
        ["in.json#/images/1", "in.json#/images/2"],
        "bad_image_entry",
    ),
    "a size in words": ([image(), image(2, "b.jpg", width="60")], ["in.json#/images/1"], "bad_image_entry"),
    "a size with a fraction": ([image(), image(2, "b.jpg", height=50.5)], ["in.json#/images/1"], "bad_image_entry"),
    "a size below 0": ([image(), image(2, "b.jpg", height=-50)], ["in.json#/images/1"], "bad_image_entry"),
    "one id for three": (
        [image(), *[image(2, f"{n}.jpg") for n in "bcd"]],
        [f"in.json#/images/{at}" for at in (1, 2, 3)],
        "duplicate",
    ),
    "a path that leads out": (
        [image(), image(2, "../b.jpg"), image(3, "c/../../c.jpg")],
        ["../b.jpg", "c/../../c.jpg"],
        "outside",
    ),
    "a path elsewhere": (
        [image(), image(2, "/etc/passwd"), image(3, "..\\c.jpg")],
        ["/etc/passwd", "..\\c.jpg"],
        "outside",
    ),
    "a URL": ([image(), image(2, "http://localhost/b.jpg")], ["http://localhost/b.jpg"], "outside"),
    "a name with a NUL": ([image(), image(2, "b\0.jpg")], ["b\\x00.jpg"], "outside"),
    "a name of many characters": ([image(), image(2, "b" * 10_000)], ["b" * 4096], "bad_value"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_a_bad_image_is_a_dead_letter(case, tmp_path):
    images, paths, reason = BAD_IMAGES[case]
    has_annotation = any(isinstance(item, dict) and item.get("id") == 2 for item in images)
    listed = list_json(tmp_path, instances(images, [annotation(1), *([annotation(2)] if has_annotation else [])]))
    assert set(listed.images) == {"a.jpg"}
    assert listed.reasons == dict.fromkeys(paths, reason)
    assert all(letter.message.isprintable() and len(letter.message) < 500 for letter in listed.letters.values())


BAD_ANNOTATIONS = {
    "no box": (annotation(box=None), "bad_annotation", "'bbox' is null"),
    "an empty box": (annotation(box=[]), "bad_annotation", "'bbox' is []"),
    "five numbers": (annotation(box=[1, 2, 3, 4, 5]), "bad_annotation", "'bbox' is [1, 2, 3, 4, 5]"),
    "words": (annotation(box=["1", 2, 3, 4]), "bad_annotation", "'bbox'"),
    "true": (annotation(box=[True, 2, 3, 4]), "bad_annotation", "'bbox'"),
    "an infinite side": (annotation(box=[1.7e308, 0, 1.7e308, 1]), "bad_annotation", "'bbox' is"),
    "a deep box": (annotation(box=[[[[[[[1]]]]]], 2, 3, 4]), "bad_annotation", "'bbox'"),
    "an unknown category": (annotation(category_id=99), "bad_label", "category 99 is not in 'categories'"),
    "no category": ({"image_id": 1, "bbox": [1, 2, 3, 4]}, "bad_label", "'category_id' is null"),
    "a category that is none": (annotation(category_id=[1]), "bad_label", "'category_id' is [1]"),
    "a crowd that is none": (annotation(iscrowd=2), "bad_annotation", "'iscrowd' is 2"),
}


@pytest.mark.parametrize("case", BAD_ANNOTATIONS)
def test_an_image_with_a_bad_annotation_is_a_dead_letter(case, tmp_path):
    bad, reason, message = BAD_ANNOTATIONS[case]
    content = instances([image(), image(2, "b.jpg")], [annotation(2), annotation(), bad, annotation(2)])
    listed = list_json(tmp_path, content)
    assert set(listed.images) == {"b.jpg"} and len(listed.objects("b.jpg").boxes) == 2
    assert listed.reasons == {"a.jpg": reason}
    assert message in listed.letters["a.jpg"].message and len(listed.letters["a.jpg"].message) < 300


def test_annotations_of_an_image_that_there_is_not_are_one_dead_letter(tmp_path):
    content = instances(annotations=[annotation(), annotation(5), annotation(6), annotation(5), {"bbox": [1]}, 3])
    listed = list_json(tmp_path, content)
    assert set(listed.images) == {"a.jpg"}
    assert listed.reasons == {
        "in.json#/annotations/1": "no_image",
        "in.json#/annotations/2": "no_image",
        "in.json#/annotations/4": "bad_annotation",
        "in.json#/annotations/5": "bad_annotation",
    }


REFUSED = {
    "no JSON": (b"<html>", "in.json: not valid JSON (lexical error"),
    "nothing": (b"", "not valid JSON"),
    "cut off": (json.dumps(instances()).encode()[:-40], "not valid JSON"),
    "trailing": (json.dumps(instances()).encode() + b" x", "not valid JSON"),
    "not UTF-8": (
        b'{"images": [{"id": 1, "file_name": "\xff"}], "annotations": [], "categories": []}',
        "not valid JSON",
    ),
    "NaN": (
        json.dumps(instances(annotations=[annotation(box=[math.nan, 1, 2, 3])])).encode(),
        "not valid JSON",
    ),
    "a million digits": (b'{"images": [{"id": ' + b"9" * 10**6 + b"}]}", "not valid JSON"),
    "too large a number": (b'{"images": [{"id": 1e999}]}', "not valid JSON"),
    "a list": ([instances()], "not a JSON object"),
    "a number": (5, "not a JSON object"),
    "no images": ({"annotations": [], "categories": []}, "no 'images'"),
    "no annotations": ({"images": [], "categories": []}, "no 'annotations'"),
    "no categories": ({"images": [], "annotations": []}, "no 'categories'"),
    "a section that is a text": (instances() | {"images": "a.jpg"}, "'images'"),
    "a panoptic file": (instances(annotations=[{"image_id": 1, "segments_info": []}]), "'segments_info'"),
    "two categories of one name that are both used": (
        instances(
            annotations=[annotation(), annotation(category_id=2)],
            categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "cat "}],
        ),
        "'cat'",
    ),
    "boxes in 0..1": (
        instances(annotations=[annotation(box=[0.1, 0.2, 0.3, 0.8]), annotation(box=[0, 0.5, 1, 0.5])]),
        "in 0..1, and COCO has pixels",
    ),
    "two categories of one id": (instances(categories=[{"id": 1, "name": "cat"}, {"id": 1.0, "name": "dog"}]), "id 1"),
    "text that is not UTF-8": (
        b'{"images": [{"id": 1, "file_name": "\xed\xa0\x80.jpg"}], "annotations": [], "categories": []}',
        "not UTF-8",
    ),
    "a second list": (json.dumps(instances()).encode()[:-1] + b', "images": []}', "'images'"),
    "a field twice": (b'{"images": [{"id": 1, "id": 2}], "annotations": [], "categories": []}', "'id'"),
    "a field within a field twice": (
        b'{"annotations": [{"image_id": 1, "bbox": {"x": 1, "x": 2}}], "images": [], "categories": []}',
        "'x'",
    ),
    "a category without a name": (instances(categories=[{"id": 1}]), "has the id 1 and the name null"),
    "a category with a bad name": (instances(categories=[{"id": 1, "name": "a\nb"}]), "the name of category 0 has"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_file_of_coco_s_is_refused(case, tmp_path):
    content, message = REFUSED[case]
    with pytest.raises(UserError) as caught:
        list_json(tmp_path, content)
    assert message in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 500


@contextlib.contextmanager
def at_most_calls(limit: int) -> Iterator[None]:
    """Fails as soon as more functions have been called, of Python or of C: steps are counted, not timed."""
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
def test_deep_nesting_is_no_harm(opening, location, tmp_path):
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


def test_a_value_that_is_nested_too_deeply_is_not_built(tmp_path):
    path = write_json(tmp_path / "in.json", {"a": [{"x": [[[[[1], 2]]]], "y": {"z": [1]}}]})
    with open(path, "rb") as file:
        assert list(read_sections("in.json", file, {"a": ("x", "y")})) == [
            ("a", 0, {"x": [[[[None, 2]]]], "y": {"z": [1]}})
        ]


@pytest.mark.slow(1)
def test_memory_is_that_of_columns(tmp_path):
    num = 2000
    with open(tmp_path / "in.json", "w") as file:
        file.write('{"annotations": [')
        entry = json.dumps(annotation("ID", segmentation=[[0.5] * 100], caption="x" * 200)).replace('"ID"', "%d")
        file.write(",".join(entry % (number % 1000) for number in range(num)))
        file.write('], "categories": [{"id": 1, "name": "cat"}], "images": [')
        file.write(",".join(json.dumps(image(number, f"{number}.jpg", url="x" * 500)) for number in range(1000)) + "]}")
    source = Coco(PrepareJob(os.fspath(tmp_path / "in.json"), "out", "made", source=SourceConfig("coco")))
    [part] = source.parts()
    tracemalloc.start()
    try:
        assert sum(len(result.values["objects"].boxes) for result in source.list(part)) == num
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < num * 150 + 2_500_000, peak  # as Python's objects these annotations take 10 MB


# Where files lie


LAYOUTS = {
    "beside": ("some.json", "a.jpg"),
    "COCO": ("annotations/instances_val2017.json", "val2017/a.jpg"),
    "COCO, images in a folder": ("annotations/instances_val2017.json", "images/val2017/a.jpg"),
    "COCO's keypoints": ("annotations/person_keypoints_val2017.json", "val2017/a.jpg"),
    "CVAT": ("annotations/instances_default.json", "images/a.jpg"),
    "around": ("annotations/instances_default.json", "a.jpg"),
    "beside, in a folder": ("annotations/instances_default.json", "annotations/a.jpg"),
    "Roboflow": ("_annotations.coco.json", "a.jpg"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_one_file(layout, tmp_path):
    name, path = LAYOUTS[layout]
    write_files(tmp_path, {path: IMAGE})
    write_json(tmp_path / name, instances([image(0, "gone.jpg"), image(1)]))
    listed = Listed(tmp_path / name)
    assert path in listed.images and len(listed.images) == 2
    assert listed.root == os.path.realpath(tmp_path) and listed.splits[path] is None
    if layout not in ("beside", "COCO's keypoints"):  # a folder with any JSON may be anything
        folder = Listed(tmp_path, split_folders=False)
        assert (folder.images, folder.label_names) == (listed.images, listed.label_names)


def test_a_relative_path(tmp_path, monkeypatch):
    write_files(tmp_path, {"train2017/a.jpg": IMAGE})
    write_json(tmp_path / "annotations/instances_train2017.json", instances())
    monkeypatch.chdir(tmp_path / "annotations")
    assert set(Listed(pathlib.Path("instances_train2017.json")).images) == {"train2017/a.jpg"}


def test_a_file_that_is_gone_once_it_is_found_is_named(tmp_path):
    write_json(write_files(tmp_path, {"a.jpg": IMAGE}) / "instances.json", instances())
    source = Coco(PrepareJob(os.fspath(tmp_path / "instances.json"), "out", "made", source=SourceConfig("coco")))
    (part,) = source.parts()
    (tmp_path / "instances.json").unlink()
    for look in (source.memory_bytes, lambda part: list(source.list(part))):
        with pytest.raises(UserError, match="instances.json cannot be read: No such file"):
            look(part)


def test_files_are_splits(tmp_path):
    names = {"train2017": "train", "val2017": "validation", "test": "test"}
    for name in names:
        write_files(tmp_path, {f"{name}/a.jpg": IMAGE})
        write_json(tmp_path / f"annotations/instances_{name}.json", instances())
    write_json(tmp_path / "annotations/captions_train2017.json", {"images": []})
    assert Listed(tmp_path).splits == {f"{name}/a.jpg": split for name, split in names.items()}
    assert set(Listed(tmp_path, split_folders=False).splits.values()) == {None}
    assert set(Listed(tmp_path, ignore=("instances_t*",)).splits) == {"val2017/a.jpg"}


def test_folders_with_annotations_in_them_are_splits(tmp_path):
    for name in ("train", "valid", "test"):
        write_files(tmp_path, {f"{name}/a.jpg": IMAGE})
        write_json(tmp_path / name / "_annotations.coco.json", instances())
    assert Listed(tmp_path).splits == {"train/a.jpg": "train", "valid/a.jpg": "validation", "test/a.jpg": "test"}


def test_two_files_of_one_split(tmp_path):
    for name in ("train2014", "train2017"):
        write_files(tmp_path, {f"{name}/a.jpg": IMAGE})
        write_json(tmp_path / f"annotations/instances_{name}.json", instances())
    assert Listed(tmp_path).splits == {"train2014/a.jpg": "train", "train2017/a.jpg": "train"}


def test_files_that_are_only_partly_splits_are_refused(tmp_path):
    for name in ("train2017", "more2017"):
        write_json(tmp_path / f"annotations/instances_{name}.json", instances())
    with pytest.raises(UserError, match="'train' .* 'more2017' .*--split_folders"):
        Listed(tmp_path)


def test_a_folder_is_found_by_names_in_the_other_unicode_normal_form(tmp_path):
    names = {form: f"{unicodedata.normalize(form, 'Löwe')}.jpg" for form in ("NFC", "NFD")}
    for item, other in (("NFC", "NFD"), ("NFD", "NFC")):
        write_files(tmp_path / item, {f"images/{names[item]}": IMAGE})
        path = write_json(tmp_path / item / "in.json", instances([image(file_name=names[other])]))
        assert set(Listed(path).images) == {f"images/{names['NFC']}"}


@pytest.mark.parametrize("is_there", [True, False])
def test_links_are_not_taken_for_images_that_are_missing(is_there, tmp_path):
    images = [image(number, f"{number}.jpg", coco_url=f"http://localhost/{number}.jpg") for number in range(3)]
    path = write_json(tmp_path / "in.json", instances(images, []))
    if is_there:
        write_files(tmp_path, {"images/1.jpg": IMAGE})
        assert set(Listed(path).images) == {f"images/{number}.jpg" for number in range(3)}
    else:
        with pytest.raises(UserError, match="--image_root.*http://localhost/0.jpg"):
            Listed(path)


def test_image_root(tmp_path):
    write_json(
        tmp_path / "labels/in.json", instances([image(1, "x/a.jpg"), image(2, os.fspath(tmp_path / "images/b.jpg"))])
    )
    listed = Listed(tmp_path / "labels/in.json", source={"image_root": os.fspath(tmp_path / "images")})
    assert (set(listed.images), listed.root) == ({"x/a.jpg", "b.jpg"}, os.path.realpath(tmp_path / "images"))
    with pytest.raises(UserError, match="--image_root=.* is a folder"):
        Listed(tmp_path / "labels", source={"image_root": os.fspath(tmp_path)})


def test_links_out_are_refused(tmp_path):
    outside = write_files(tmp_path / "outside", {"b.jpg": IMAGE})
    write_json(outside / "instances_train.json", instances())
    root = write_files(tmp_path / "in", {"a.jpg": IMAGE})
    write_json(root / "annotations/instances_all.json", instances([image(), image(2, "b.jpg"), image(3, "f/b.jpg")]))
    (root / "b.jpg").symlink_to(outside / "b.jpg")
    (root / "f").symlink_to(outside)
    assert Listed(root).reasons == {"b.jpg": "outside", "f/b.jpg": "outside"}
    (root / "annotations/instances_val.json").symlink_to(outside / "instances_train.json")
    with pytest.raises(UserError, match="'annotations/instances_val.json' is a link .*--follow_links"):
        Listed(root, split_folders=False)


def test_ignored_images_are_counted(tmp_path):
    listed = list_json(
        tmp_path, instances([image(), image(2, "x/b.jpg"), image(3, "c.png")], []), ignore=("x/*", "*.png")
    )
    assert (set(listed.images), listed.num_ignored) == ({"a.jpg"}, 2)


def test_sizes_are_looked_up_if_they_are_wanted(tmp_path):
    write_files(tmp_path, {"a.jpg": b"12345"})
    path = write_json(tmp_path / "in.json", instances([image(), image(2, "gone.jpg")]))
    assert {key: actual.num_bytes for key, actual in Listed(path, with_sizes=True).images.items()} == {
        "a.jpg": 5,
        "gone.jpg": 0,
    }
    assert {result.num_bytes for result in Listed(path).images.values()} == {0}


@pytest.mark.parametrize("path", ["in.json", "in"])
def test_what_is_not_there_is_refused(path, tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Listed(tmp_path / path)


def test_a_folder_without_annotations_is_refused(tmp_path):
    with pytest.raises(UserError, match="annotations/instances_"):
        Listed(write_files(tmp_path, {"some.json": b"{}", "train/a.jpg": IMAGE}))


# Masks


def test_outlines_become_regions_small_ones_over_large_ones(tmp_path):
    runs, packed = {"size": [50, 60], "counts": [0, 3000]}, {"size": [50, 60], "counts": "PPYo1"}
    objects = [
        annotation(box=[0, 0, 4, 4], segmentation=SQUARE),  # its area is its box's
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
    assert listed.objects("a.jpg").labels == ("cat", "dog", "cat", "dog")  # in their own order
    assert listed.images["b.jpg"].values["mask"] == Regions(("cat",), (packed,), (50, 60))
    assert listed.images["c.jpg"].values["mask"] == Regions((), (), (50, 60))


@pytest.mark.parametrize(
    "bad, entry, message",
    [
        ({"segmentation": None}, image(), "'segmentation' is null"),
        ({"segmentation": []}, image(), "'segmentation' is []"),
        ({"segmentation": "x"}, image(), "'segmentation' is \"x\""),
        ({"segmentation": SQUARE, "area": "4"}, image(), "'area' is \"4\""),
        ({"segmentation": SQUARE}, image(height=0), "has no height and width"),
    ],
)
def test_an_outline_that_is_none_is_a_dead_letter(bad, entry, message, tmp_path):
    listed = list_json(tmp_path, instances([entry], [annotation(**bad)]), source={"has_masks": True})
    assert not listed.images and message in listed.letters["a.jpg"].message


def test_one_polygon_needs_no_list_around_it(tmp_path):
    listed = list_json(
        tmp_path, instances(annotations=[annotation(segmentation=SQUARE[0])]), source={"has_masks": True}
    )
    assert listed.images["a.jpg"].values["mask"].regions == (SQUARE,)


def test_outlines_can_be_drawn(tmp_path):
    """0 is the background, and the class with label i has the value i + 1, as the feature's description says."""
    objects = [
        annotation(category_id=2, area=9, segmentation=[[0, 0, 3, 0, 3, 3, 0, 3]]),
        annotation(area=36, segmentation=[[0, 0, 6, 0, 6, 6, 0, 6]]),
    ]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "ant"}]
    listed = list_json(tmp_path, instances([image(width=8, height=7)], objects, categories), source={"has_masks": True})
    expected = np.zeros((7, 8), np.uint8)
    expected[:6, :6], expected[:3, :3] = 1, 2
    np.testing.assert_array_equal(draw_regions(listed.images["a.jpg"].values["mask"], listed.label_names[0]), expected)


# Options


def test_features(tmp_path):
    def made(**source: Any) -> Coco:
        return Coco(PrepareJob("in", "out", "made", source=SourceConfig("coco", **source)))

    names = ["objects/bbox", "objects/is_crowd", "objects/label"]
    assert [feature.name for feature in made().features] == names and made().targets == ("objects",)
    assert [feature.name for feature in made(has_masks=True).features] == [*names, "mask"]
    assert made(has_masks=True).targets == ("objects", "mask")
    assert names[-1] in made(has_masks=True).features[-1].description  # which says what the values of the mask are
    assert (made(labels=()).features, made(labels=()).targets, made(labels=()).label_names()) == ((), (), {})


def test_images_alone(tmp_path):
    assert list_json(tmp_path, instances(), source={"labels": ()}).images["a.jpg"].values is None


def test_class_names_can_be_given(tmp_path):
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = instances([image(), image(2, "b.jpg")], [annotation(), annotation(2, category_id=2)], categories)
    listed = list_json(tmp_path, content, source={"label_names": ("dog", "bird")})
    assert (set(listed.images), listed.reasons) == ({"b.jpg"}, {"a.jpg": "bad_label"})
    assert listed.label_names == [("dog", "bird")]
    assert "'cat'" in listed.letters["a.jpg"].message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"labels": (Column("label", ("label",)),)}, "--label: "),
        ({"labels": (), "has_masks": True}, "--masks and --label=none exclude each other"),
        ({"features": (Column("age", ("age",)),)}, "--feature: "),
        ({"header_bytes": 3}, "--header_bytes: "),
    ],
)
def test_options_that_mean_nothing_here_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Coco(PrepareJob("in", "out", "made", source=SourceConfig("coco", **options)))
