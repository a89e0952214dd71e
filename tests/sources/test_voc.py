"""Source `voc`: every row of the table in its docstring, real layouts, and XML that was made to do harm."""

import os
import pathlib
import resource
import threading
from typing import Any, Mapping, Sequence

import pytest

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import InvalidInput, UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.annotated import voc
from beam_pipelines.sources.annotated.voc import Voc
from beam_pipelines.sources.annotated.voc_annotation import parse_annotation
from made_images import write_files

IMAGE = b"not looked at"


def obj(name: str = "cat", box: Sequence[object] = (1, 2, 30, 40), inner: str = "") -> str:
    """An object; its box as (xmin, ymin, xmax, ymax)."""
    sides = "".join(f"<{tag}>{value}</{tag}>" for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box))
    return f"<object>{inner}<name>{name}</name><bndbox>{sides}</bndbox></object>"


def xml(*objects: str, filename: str = "", size: str = "<size><width>60</width><height>50</height></size>") -> bytes:
    return f"<annotation><filename>{filename}</filename>{size}{''.join(objects)}</annotation>".encode()


class Listed:
    """A whole listing, by parts, each from a source of its own as workers do it."""

    def __init__(
        self, root: os.PathLike[str], *, with_sizes: bool = False, source: Mapping[str, Any] = {}, **options: Any
    ) -> None:
        config = PrepareJob(os.fspath(root), "out", "made", source=SourceConfig("voc", **source), **options)
        self.parts = Voc(config).parts()
        self.images: dict[str, InputRecord] = {}
        self.letters: dict[str, DeadLetter] = {}
        self.num_ignored = 0
        for part in self.parts:
            lister = Voc(config, with_sizes=with_sizes)
            for result in lister.list(part):
                into, name = (self.letters, result.path) if isinstance(result, DeadLetter) else (self.images, result.key)
                assert name not in into
                into[name] = result
            self.num_ignored += lister.num_ignored

    @property
    def reasons(self) -> dict[str, str]:
        return {path: letter.reason for path, letter in self.letters.items()}

    @property
    def splits(self) -> dict[str, str | None]:
        return {key: image.split for key, image in self.images.items()}

    def labels(self, key: str) -> tuple[str, ...]:
        return self.images[key].values["objects"].labels


# Layouts


LAYOUTS = {
    "devkit": ("Annotations/{}.xml", "JPEGImages/{}.jpg"),
    "lower case": ("annotations/{}.xml", "images/{}.jpg"),
    "one folder": ("{}.xml", "{}.jpg"),
    "one folder, below": ("deep/er/{}.xml", "deep/er/{}.jpg"),
    "mirrored folders": ("Annotations/a/{}.xml", "JPEGImages/a/{}.jpg"),
    "annotations beside images": ("Annotations/{}.xml", "{}.jpg"),
    "flat images, deep annotations": ("annotations/xmls/{}.xml", "images/{}.jpg"),
    "a year of several": ("VOC2007/Annotations/{}.xml", "VOC2007/JPEGImages/{}.jpg"),
    "other case of the extension": ("Annotations/{}.XML", "JPEGImages/{}.JPG"),
    "another language": ("Annotations/Lo\u0308we {}.xml", "JPEGImages/L\u00f6we {}.png"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, tmp_path):
    annotation, image = LAYOUTS[layout]
    for name in ("1", "2.b"):
        write_files(tmp_path, {annotation.format(name): xml(obj()), image.format(name): IMAGE})
    listed = Listed(tmp_path)
    assert set(listed.images) == {image.format("1"), image.format("2.b")}
    assert not listed.letters and not listed.num_ignored
    assert set(listed.splits.values()) == {None}


def test_split_folders(tmp_path):
    for folder in ("train", "valid", "Test"):
        write_files(tmp_path / folder, {"a.xml": xml(obj()), "a.jpg": IMAGE})
    assert Listed(tmp_path).splits == {"train/a.jpg": "train", "valid/a.jpg": "validation", "Test/a.jpg": "test"}
    assert set(Listed(tmp_path, split_folders=False).splits.values()) == {None}


def test_split_folders_with_folders_of_annotations(tmp_path):
    for folder in ("train", "val"):
        write_files(tmp_path / folder, {"annotations/a.xml": xml(obj()), "images/a.jpg": IMAGE})
    assert Listed(tmp_path).splits == {"train/images/a.jpg": "train", "val/images/a.jpg": "validation"}


def test_folders_that_are_only_partly_splits_are_refused(tmp_path):
    for folder in ("train", "more"):
        write_files(tmp_path / folder, {"annotations/a.xml": xml(obj()), "images/a.jpg": IMAGE})
    with pytest.raises(UserError, match="'train' .* 'more' .*--split_folders"):
        Listed(tmp_path)
    assert set(Listed(tmp_path, split_folders=True).splits.values()) == {"train", "more"}


def make_devkit(root: pathlib.Path, lists: Mapping[str, str], names: str = "abcd") -> pathlib.Path:
    write_files(root, {f"Annotations/{name}.xml": xml(obj()) for name in names})
    write_files(root, {f"JPEGImages/{name}.jpg": IMAGE for name in names})
    return write_files(root, {f"ImageSets/Main/{name}.txt": text.encode() for name, text in lists.items()})


def test_lists_are_splits(tmp_path):
    make_devkit(tmp_path, {"train": "a\n", "val": "b\r\n\n", "trainval": "a\nb\n", "test": "c", "cat_train": "d 1\n"})
    listed = Listed(tmp_path)
    assert listed.splits == {"JPEGImages/a.jpg": "train", "JPEGImages/b.jpg": "validation", "JPEGImages/c.jpg": "test"}
    assert listed.num_ignored == 2  # d's image and its annotation are in no list
    assert not listed.letters


def test_trainval_stands_for_a_train_that_is_not_there(tmp_path):
    make_devkit(tmp_path, {"trainval": "a\nb\n", "test": "c\nd\n"})
    assert sorted(Listed(tmp_path).splits.values()) == ["test", "test", "train", "train"]


def test_lists_can_be_left_alone(tmp_path):
    make_devkit(tmp_path, {"train": "a\n", "val": "b\n"})
    assert list(Listed(tmp_path, split_folders=False).splits.values()) == [None] * 4


def test_what_a_list_has_twice_or_the_folder_has_not_is_a_dead_letter(tmp_path):
    make_devkit(tmp_path, {"train": "a\nb\n", "val": "c\na\nz\n"})
    listed = Listed(tmp_path)
    assert listed.reasons == {"ImageSets/Main/val.txt:2": "duplicate", "ImageSets/Main/val.txt:3": "missing"}
    assert listed.splits["JPEGImages/a.jpg"] == "train"
    assert "ImageSets/Main/train.txt:1" in listed.letters["ImageSets/Main/val.txt:2"].message


def test_years_keep_their_lists_apart(tmp_path):
    make_devkit(tmp_path / "VOC2007", {"train": "a\n", "val": "b\n"})
    make_devkit(tmp_path / "VOC2012", {"train": "b\n", "val": "a\n"})
    assert Listed(tmp_path).splits == {
        "VOC2007/JPEGImages/a.jpg": "train",
        "VOC2007/JPEGImages/b.jpg": "validation",
        "VOC2012/JPEGImages/a.jpg": "validation",
        "VOC2012/JPEGImages/b.jpg": "train",
    }


def test_a_list_that_is_no_text_is_refused(tmp_path):
    write_files(make_devkit(tmp_path, {}), {"ImageSets/Main/train.txt": b"\xff\xfe\x00"})
    with pytest.raises(UserError, match="ImageSets/Main/train.txt cannot be read"):
        Listed(tmp_path)


# Which image


def test_an_image_with_the_annotation_s_name_is_its_image_whatever_filename_says(tmp_path):
    stale = ["", "a.JPG", "gone.jpg", "/home/someone/gone.jpg", "C:\\pictures\\a.jpg", "a"]
    for number, filename in enumerate(stale):
        root = write_files(
            tmp_path / str(number), {"annotations/a.xml": xml(obj(), filename=filename), "images/a.jpg": IMAGE}
        )
        listed = Listed(root)
        assert (list(listed.images), listed.letters) == (["images/a.jpg"], {}), filename


def test_filename_names_an_image_of_another_name(tmp_path):
    names = {"1": "x.jpg", "2": "y.jpg", "3": "images\\z.png", "4": "w", "5": "v.jpg"}
    write_files(
        tmp_path, {f"annotations/{name}.xml": xml(obj(f"cat{name}"), filename=stated) for name, stated in names.items()}
    )
    write_files(tmp_path, {f"images/{name}": IMAGE for name in ("x.jpg", "y.JPG", "images/z.png", "w.bmp")})
    listed = Listed(tmp_path)
    actual = {key: image.values["objects"].labels for key, image in listed.images.items()}
    assert actual == {
        "images/x.jpg": ("cat1",),
        "images/y.JPG": ("cat2",),
        "images/images/z.png": ("cat3",),
        "images/w.bmp": ("cat4",),
    }
    assert listed.reasons == {"annotations/5.xml": "missing"}
    assert "'v.jpg'" in listed.letters["annotations/5.xml"].message


def test_two_images_that_an_annotation_may_mean(tmp_path):
    files = {"annotations/a.xml": xml(obj(), filename="b.jpg"), "annotations/b.xml": xml(obj(), filename="b.jpg")}
    listed = Listed(write_files(tmp_path, {**files, "images/a.jpg": IMAGE, "images/b.jpg": IMAGE}))
    assert set(listed.images) == {"images/b.jpg"} and listed.reasons == {"annotations/a.xml": "ambiguous"}
    assert "'images/b.jpg', and 'images/a.jpg' has the annotation's name" in listed.letters["annotations/a.xml"].message


def test_two_images_of_one_name(tmp_path):
    files = {
        "a.xml": xml(obj(), filename="a.png"),
        "a.jpg": IMAGE,
        "a.png": IMAGE,
        "b.xml": xml(obj()),
        "b.jpg": IMAGE,
        "b.png": IMAGE,
    }
    listed = Listed(write_files(tmp_path, files))
    assert set(listed.images) == {"a.png"}
    assert listed.reasons == {name: "no_annotation" for name in ("a.jpg", "b.jpg", "b.png")} | {"b.xml": "ambiguous"}


def test_two_annotations_of_one_name_and_one_that_leads_nowhere(tmp_path):
    files = {"annotations/a.xml": xml(obj("cat")), "annotations/a.XML": xml(obj("dog")), "images/a.jpg": IMAGE}
    root = write_files(tmp_path, {**files, "images/b.jpg": IMAGE})
    (root / "annotations/b.xml").symlink_to("nowhere.xml")
    listed = Listed(root)
    assert set(listed.images) == {"images/a.jpg"}
    assert listed.reasons == {"annotations/a.xml": "ambiguous", "annotations/b.xml": "symlink", "images/b.jpg": "no_annotation"}


def test_nothing_is_dropped(tmp_path):
    """Each annotation and each image that is left over is one input."""
    files = {
        "annotations/a.xml": xml(obj()),
        "images/a.jpg": IMAGE,
        "annotations/lonely.xml": xml(obj()),
        "images/plain.jpg": IMAGE,
    }
    listed = Listed(
        write_files(
            tmp_path, {**files, "images/notes.txt": b"", "images/.hidden.jpg": b"", "annotations/list.csv": b""}
        )
    )
    assert set(listed.images) == {"images/a.jpg"}
    assert listed.reasons == {"annotations/lonely.xml": "missing", "images/plain.jpg": "no_annotation"}
    assert listed.num_ignored == 3


def test_ignored_files(tmp_path):
    files = {"a.xml": xml(obj()), "a.jpg": IMAGE, "b.xml": b"<", "b.jpg": IMAGE}
    listed = Listed(write_files(tmp_path, files), ignore=("b.*",))
    assert set(listed.images) == {"a.jpg"} and not listed.letters and listed.num_ignored == 2


def test_parts_are_listed_apart_and_together_give_all(tmp_path, monkeypatch):
    monkeypatch.setattr(voc, "PART_FILES", 3)
    write_files(
        tmp_path, {f"{name}.xml": xml(obj()) for name in range(10)} | {f"{name}.jpg": IMAGE for name in range(10)}
    )
    listed = Listed(tmp_path)
    assert len(listed.images) == 10 and len(listed.parts) == 4
    assert listed.parts == Listed(tmp_path).parts


def test_no_part_grows_with_the_files_that_are_in_no_pair(tmp_path):
    num = 100
    write_files(tmp_path, {f"annotations/x{name}.xml": xml(obj(), filename=f"{name}.jpg") for name in range(num)})
    write_files(
        tmp_path,
        {f"images/{name}.jpg": IMAGE for name in range(2 * num)} | {f"images/{name}.txt": b"" for name in range(num)},
    )
    (tmp_path / "images/z.jpg").symlink_to("nowhere.jpg")
    listed = Listed(tmp_path)
    assert max(map(len, listed.parts)) < 500
    assert (len(listed.images), len(listed.letters), listed.num_ignored) == (num, num + 1, num)


class SlowFiles:
    """Files in a store. Each read waits until several others have begun, or fails after a while."""

    def __init__(self, num: int) -> None:
        self.barrier = threading.Barrier(num)
        self.num_reads = 0

    def read_range(self, path: str, start: int, num_bytes: int) -> bytes:
        self.num_reads += 1
        self.barrier.wait(timeout=60)
        return xml(obj(os.path.basename(path)))


def test_xml_files_of_a_store_are_read_in_parallel(monkeypatch):
    """A read at a time would never get past the barrier."""
    source = Voc.__new__(Voc)
    source.root, source._files = "s3://made/voc", SlowFiles(8)
    paths = [f"{number}.xml" for number in range(24)]
    actual = [parse_annotation(data).objects.labels for data in source._read_all(paths)]
    assert actual == [(path,) for path in paths] and source._files.num_reads == 24


def test_sizes_are_looked_up_if_they_are_wanted(tmp_path):
    write_files(tmp_path, {"a.xml": xml(obj()), "a.jpg": b"12345", "b.xml": xml(filename="c.jpg"), "c.jpg": b"123"})
    assert {key: image.num_bytes for key, image in Listed(tmp_path, with_sizes=True).images.items()} == {
        "a.jpg": 5,
        "c.jpg": 3,
    }
    assert {image.num_bytes for image in Listed(tmp_path).images.values()} == {0}


# What an annotation says


def test_objects_are_as_they_are_written(tmp_path):
    reordered = "<object><bndbox><ymax>40.5</ymax><xmax>30</xmax><xmin>1e0</xmin><ymin> 2 </ymin></bndbox><name> cat </name></object>"
    flagged = obj("dog", (5, 6, 7, 8), "<difficult>1</difficult><truncated>True</truncated>")
    parts = "<part><name>head</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></part>"
    data = xml(reordered, flagged, obj("man", (0, 0, 60, 50), parts + "<truncated>Unspecified</truncated><difficult/>"))
    assert parse_annotation(data).objects == Objects(
        boxes=((2.0, 1.0, 40.5, 30.0), (6.0, 5.0, 8.0, 7.0), (0.0, 0.0, 50.0, 60.0)),
        labels=("cat", "dog", "man"),
        flags={"is_difficult": (0, 1, 0), "is_truncated": (0, 1, 0)},
        image_size=(50, 60),
    )
    assert parse_annotation(data).others == {"part"}


@pytest.mark.parametrize("root", ["Annotation", "ANNOTATION"])
def test_the_root_may_be_written_in_any_case(root):
    data = xml(obj()).replace(b"annotation>", root.encode() + b">")
    assert parse_annotation(data).objects.labels == ("cat",)


def test_an_image_may_have_no_object(tmp_path):
    listed = Listed(write_files(tmp_path, {"a.xml": xml(), "a.jpg": IMAGE}))
    assert listed.images["a.jpg"].values == {
        "objects": Objects((), (), {"is_difficult": (), "is_truncated": ()}, (50, 60))
    }


SIZES = {
    "": None,
    "<size/>": None,
    "<size><width>0</width><height>0</height></size>": None,
    "<size><width>60</width></size>": None,
    "<size><width>60.0</width><height>50</height><depth>3</depth></size>": (50, 60),
}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_images(size):
    assert parse_annotation(xml(size=size)).objects.image_size == SIZES[size]


BILLION_LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol"><!ELEMENT lolz (#PCDATA)>
<!ENTITY lol1 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;"><!ENTITY lol2 "&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;">
]><annotation><filename>&lol2;</filename></annotation>"""
HOSTILE = {
    "billion laughs": (BILLION_LAUGHS, "bad_xml", "a DTD or an entity"),
    "external entity": (
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>',
        "bad_xml",
        "a DTD or an entity",
    ),
    "parameter entity": (
        b'<!DOCTYPE a [<!ENTITY % x SYSTEM "http://localhost:1/x.dtd"> %x;]><annotation/>',
        "bad_xml",
        "a DTD or an entity",
    ),
    "a DTD alone": (b'<!DOCTYPE annotation SYSTEM "annotation.dtd"><annotation/>', "bad_xml", "a DTD or an entity"),
    "an entity that there is not": (b"<annotation><filename>&x;</filename></annotation>", "bad_xml", "not valid XML"),
    "another root that begins so": (b"<annotations/>", "bad_xml", "<annotations>"),
    "two names": (xml(obj(inner="<name>dog</name>")), "bad_xml", "<name>"),
    "two boxes": (xml(obj(inner="<bndbox><xmin>1</xmin></bndbox>")), "bad_xml", "<bndbox>"),
    "a side twice": (xml(obj().replace("<xmin>", "<xmin>5</xmin><xmin>")), "bad_xml", "<xmin>"),
    "two flags": (xml(obj(inner="<difficult>0</difficult><difficult>1</difficult>")), "bad_xml", "<difficult>"),
    "two sizes": (xml(size="<size/><size/>"), "bad_xml", "<size>"),
    "two names of a file": (xml(filename="a.jpg</filename><filename>b.jpg"), "bad_xml", "<filename>"),
    "another root": (b"<html><object/></html>", "bad_xml", "its root is <html>"),
    "nothing": (b"", "bad_xml", "not valid XML"),
    "an image": (b"\xff\xd8\xff\xe0", "bad_xml", "not valid XML"),
    "cut off": (xml(obj())[:-20], "bad_xml", "not valid XML"),
    "an encoding that there is not": (b'<?xml version="1.0" encoding="x-nothing"?><annotation/>', "bad_xml", "not valid XML"),
    "an encoding of many bytes": (b'<?xml version="1.0" encoding="utf-7"?><annotation/>', "bad_xml", "not valid XML"),
    "no box": (xml("<object><name>cat</name></object>"), "bad_xml", "object 1 has no <bndbox>"),
    "only a part's box": (
        xml(f"<object><name>cat</name><part>{obj()}</part></object>"),
        "bad_xml",
        "object 1 has no <bndbox>",
    ),
    "three sides": (xml(obj(box=(1, 2, 3))), "bad_xml", "<ymax> of object 1 is ''"),
    "NaN": (xml(obj(), obj(box=("nan", 2, 3, 4))), "bad_xml", "<xmin> of object 2 is 'nan'"),
    "infinity": (xml(obj(box=(1, "-inf", 3, 4))), "bad_xml", "'-inf'"),
    "too large a number": (xml(obj(box=(1, 2, "1e999", 4))), "bad_xml", "'1e999'"),
    "a million digits": (xml(obj(box=(1, 2, "9" * 10**6, 4))), "bad_xml", "finite number"),
    "underscores": (xml(obj(box=("1_0", 2, 3, 4))), "bad_xml", "'1_0'"),
    "other digits": (xml(obj(box=("\u0663", 2, 3, 4))), "bad_xml", "finite number"),
    "a size of many digits": (
        xml(size=f"<size><width>{'9' * 5000}</width><height>5</height></size>"),
        "bad_xml",
        "<width>",
    ),
    "a size below 0": (xml(size="<size><width>-3</width><height>5</height></size>"), "bad_xml", "<size> is -3 x 5"),
    "no name": (xml(obj("")), "bad_label", "<name> of object 1 is empty"),
    "a name on two lines": (xml(obj("a\nb")), "bad_label", "<name> of object 1"),
    "a name with a control character": (xml(obj("a&#x9b;b")), "bad_label", "<name> of object 1"),
    "a name of many characters": (xml(obj("a" * 257)), "bad_label", "<name> of object 1"),
    "a negative class": (xml(obj("-1")), "bad_label", "<name> of object 1"),
    "a flag that is none": (
        xml(obj(inner="<difficult>2</difficult>")),
        "bad_xml",
        "<difficult> of object 1 is '2'",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_annotation_is_a_dead_letter(case, tmp_path):
    data, reason, message = HOSTILE[case]
    listed = Listed(write_files(tmp_path, {"a.xml": data, "a.jpg": IMAGE}))
    letter = listed.letters["a.xml"]
    assert not listed.images and len(listed.letters) == 1
    assert (letter.stage, letter.reason) == ("list", reason)
    assert message in letter.message and letter.message.isprintable() and len(letter.message) < 500


@pytest.mark.slow
def test_deep_nesting_is_no_harm():
    depth = 100_000
    data = b"<annotation>" + b"<a>" * depth + b"</a>" * depth + b"</annotation>"
    assert parse_annotation(data).objects.labels == ()
    with pytest.raises(InvalidInput, match="not valid XML"):
        parse_annotation(b"<annotation>" + b"<object>" * depth)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    write_files(tmp_path, {"a.xml": b"", "a.jpg": IMAGE})
    with open(tmp_path / "a.xml", "r+b") as file:
        file.truncate(64 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    listed = Listed(tmp_path)
    assert listed.reasons == {"a.xml": "bad_xml"} and "more than 4194304 bytes" in listed.letters["a.xml"].message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_nothing_outside_is_opened(tmp_path):
    outside = write_files(
        tmp_path / "outside", {"a.xml": xml(obj()), "b.jpg": IMAGE, "f/x.xml": xml(obj()), "f/x.jpg": IMAGE}
    )
    root = write_files(
        tmp_path / "in", {"a.jpg": IMAGE, "b.xml": xml(obj()), "c.xml": xml(obj(), filename="../outside/b.jpg")}
    )
    (root / "a.xml").symlink_to(outside / "a.xml")
    (root / "b.jpg").symlink_to(outside / "b.jpg")
    (root / "f").symlink_to(outside / "f")
    (root / "gone.jpg").symlink_to("nowhere.jpg")
    listed = Listed(root)
    assert not listed.images
    assert listed.reasons == {
        "a.jpg": "no_annotation",
        "a.xml": "outside",
        "b.jpg": "outside",
        "b.xml": "missing",
        "c.xml": "outside",
        "f": "outside",
        "gone.jpg": "symlink",
    }


def test_a_path_that_leads_out_is_refused_even_where_it_is_not_needed(tmp_path):
    write_files(tmp_path / "in", {"a.xml": xml(filename="../../secret.jpg"), "a.jpg": IMAGE})
    assert Listed(tmp_path / "in").reasons == {"a.xml": "outside"}


def test_a_link_to_a_file_in_the_folder_is_like_the_file(tmp_path):
    root = write_files(
        tmp_path, {"annotations/a.xml": xml(obj()), "images/a.jpg": IMAGE, "annotations/b.xml": xml(obj("dog"))}
    )
    (root / "images/b.jpg").symlink_to(root / "images/a.jpg")
    assert Listed(root).labels("images/b.jpg") == ("dog",)


# Options


def test_class_names_can_be_given(tmp_path):
    root = write_files(tmp_path, {"a.xml": xml(obj("cat")), "a.jpg": IMAGE, "b.xml": xml(obj("dgo")), "b.jpg": IMAGE})
    listed = Listed(root, source={"label_names": ("cat", "dog")})
    assert set(listed.images) == {"a.jpg"} and listed.reasons == {"b.xml": "bad_label"}
    assert "'dgo'" in listed.letters["b.xml"].message


def test_features(tmp_path):
    source = Voc(PrepareJob("in", "out", "made", source=SourceConfig("voc")))
    assert [(feature.name, feature.kind, feature.shape) for feature in source.features] == [
        ("objects/bbox", "bbox", (None, 4)),
        ("objects/is_difficult", "integer", (None,)),
        ("objects/is_truncated", "integer", (None,)),
        ("objects/label", "class_label", (None,)),
    ]
    assert source.targets == ("objects",) and source.label_names() == {}


def test_images_alone(tmp_path):
    root = write_files(tmp_path, {"a.xml": xml(obj()), "a.jpg": IMAGE})
    assert Listed(root, source={"labels": ()}).images["a.jpg"].values is None
    source = Voc(PrepareJob(os.fspath(root), "out", "made", source=SourceConfig("voc", labels=())))
    assert (source.features, source.targets) == ((), ())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"labels": (Column("label", ("label",)),)}, "--label: "),
        ({"features": (Column("age", ("age",)),)}, "--feature: "),
        ({"image_root": "elsewhere"}, "--image_root: "),
        ({"group": "patient"}, "--group: "),
        ({"has_masks": True}, "--masks: "),
    ],
)
def test_options_that_mean_nothing_here_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Voc(PrepareJob("in", "out", "made", source=SourceConfig("voc", **options)))


@pytest.mark.parametrize("files", [{}, {"a.jpg": IMAGE}, {"Annotations/notes.txt": b"", "JPEGImages/a.jpg": IMAGE}])
def test_a_folder_without_annotations_is_refused(files, tmp_path):
    with pytest.raises(UserError, match="no XML file"):
        Listed(write_files(tmp_path, files))


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Listed(tmp_path / "nothing")
