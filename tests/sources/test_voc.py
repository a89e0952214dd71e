"""Tests that the source `voc` reads layouts and splits, pairs images with annotations, and rejects hostile XML."""

import json
import os
import pathlib
import re
import resource
import shlex
import threading
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.annotations import paired_source
from beam_pipelines.sources.formats.voc import Voc
from beam_pipelines.sources.guess import guess_source
from listed import Listing
from made_images import encode, jpeg, write_files

IMAGE = b"not looked at"


def obj(name: str = "cat", box: Sequence[object] = (1, 2, 30, 40), inner: str = "") -> str:
    """Returns the XML of an object with the given box (xmin, ymin, xmax, ymax)."""
    sides = "".join(f"<{tag}>{value}</{tag}>" for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box))
    return f"<object>{inner}<name>{name}</name><bndbox>{sides}</bndbox></object>"


def xml(*objects: str, filename: str = "", size: str = "<size><width>60</width><height>50</height></size>") -> bytes:
    return f"<annotation><filename>{filename}</filename>{size}{''.join(objects)}</annotation>".encode()


def list_voc(root: os.PathLike[str], **options: Any) -> Listing:
    return Listing(root, "voc", **options)


def list_annotation(root: pathlib.Path, data: bytes) -> Listing:
    """Lists an image `a.jpg` with the annotation `a.xml`."""
    return list_voc(write_files(root, {"a.xml": data, "a.jpg": IMAGE}))


# Layouts


# The paths of the annotation and the image {}.
LAYOUTS = {
    "devkit": ("Annotations/{}.xml", "JPEGImages/{}.jpg"),
    "lower case": ("annotations/{}.xml", "images/{}.jpg"),
    "single folder": ("{}.xml", "{}.jpg"),
    "nested single folder": ("deep/er/{}.xml", "deep/er/{}.jpg"),
    "same folders for images and annotations": ("Annotations/a/{}.xml", "JPEGImages/a/{}.jpg"),
    "annotations beside images": ("Annotations/{}.xml", "{}.jpg"),
    "nested annotations": ("annotations/xmls/{}.xml", "images/{}.jpg"),
    "folder of a year": ("VOC2007/Annotations/{}.xml", "VOC2007/JPEGImages/{}.jpg"),
    "ImageNet": ("Annotations/CLS-LOC/n01440764/{}.xml", "Data/CLS-LOC/n01440764/{}.JPEG"),
    "other names": ("annots/{}.xml", "img/{}.jpg"),
    "upper-case extensions": ("Annotations/{}.XML", "JPEGImages/{}.JPG"),
    "different Unicode normal forms": ("Annotations/Lo\u0308we {}.xml", "JPEGImages/L\u00f6we {}.png"),
    "no extension": ("Annotation/n02085620-Chihuahua/{}_0", "Images/n02085620-Chihuahua/{}_0.jpg"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_finds_images_in_usual_layouts(layout, tmp_path):
    annotation, image = LAYOUTS[layout]
    names = ("1", "2.b") if "." in annotation else ("1", "2")
    for name in names:
        write_files(tmp_path, {annotation.format(name): xml(obj()), image.format(name): IMAGE})
    listed = list_voc(tmp_path)
    assert listed.splits == {image.format(name): None for name in names}
    assert not listed.letters and not listed.num_ignored
    if layout in ("devkit", "no extension", "ImageNet"):
        assert guess_source(str(tmp_path)).kind.name == "voc"


# The paths of the annotation and the image in the split {}.
SPLIT_LAYOUTS = {
    "split folders": ("{}/a.xml", "{}/a.jpg"),
    "folders in split folders": ("{}/annotations/a.xml", "{}/images/a.jpg"),
    "splits in both folders": ("Annotations/{}/a/1.xml", "JPEGImages/{}/a/1.jpg"),
    "ImageNet": ("Annotations/CLS-LOC/{}/n01440764/1.xml", "Data/CLS-LOC/{}/n01440764/1.JPEG"),
    "years": ("Annotations/{}2017/1.xml", "JPEGImages/{}2017/1.jpg"),
    "images of all splits in one folder": ("annotations/{0}/{0}.xml", "images/{0}.jpg"),
}


@pytest.mark.parametrize("layout", SPLIT_LAYOUTS)
def test_folders_give_splits(layout, tmp_path):
    annotation, image = SPLIT_LAYOUTS[layout]
    for split in ("train", "valid"):
        write_files(tmp_path, {annotation.format(split): xml(obj()), image.format(split): IMAGE})
    has_more = layout not in ("split folders", "images of all splits in one folder")
    if has_more:  # Images without an annotation folder are left out.
        write_files(tmp_path, {image.format("test"): IMAGE})
    listed = list_voc(tmp_path)
    assert listed.splits == {image.format("train"): "train", image.format("valid"): "validation"}
    assert not listed.letters and listed.num_ignored == has_more
    assert set(list_voc(tmp_path, split_folders=False).splits.values()) == {None}
    if layout in ("splits in both folders", "ImageNet"):
        assert guess_source(str(tmp_path)).kind.name == "voc"


def test_image_root_names_the_folder_of_images(tmp_path):
    for split in ("train", "val"):
        write_files(tmp_path, {f"labels/{split}/1.xml": xml(obj()), f"pictures/all/{split}/1.jpg": IMAGE})
    listed = list_voc(tmp_path / "labels", source={"image_root": str(tmp_path / "pictures/all")})
    assert listed.splits == {"pictures/all/train/1.jpg": "train", "pictures/all/val/1.jpg": "validation"} and not listed.letters
    listed = list_voc(tmp_path / "labels/train", source={"image_root": str(tmp_path / "pictures/all/train")})
    assert listed.splits == {"pictures/all/train/1.jpg": None}


def test_readings_of_oxford_pets_are_named_with_their_options(tmp_path):
    root = tmp_path / "pets"
    for number in range(4):
        files = {f"images/a_{number}.jpg": jpeg(number, 16, 16), f"annotations/xmls/a_{number}.xml": xml(obj(box=(1, 2, 9, 9)), size="")}
        write_files(root, files | {f"annotations/trimaps/a_{number}.png": encode(np.full((16, 16), 1 + number % 3, np.uint8), "PNG")})
    rows = "".join(f"a_{number} {number % 2 + 1} 1 1\n" for number in range(4))
    write_files(root, {"annotations/list.txt": f"#Image CLASS-ID SPECIES BREED ID\n{rows}".encode()})
    with pytest.raises(UserError) as raised:
        guess_source(str(root))
    options = [shlex.split(text) for text in re.findall(r"(--source=.*?) \(", str(raised.value))]
    assert [option[0] for option in options] == ["--source=masks", "--source=text", "--source=voc"]
    for number, given in enumerate(options):
        arguments = given if any(option.startswith("--input=") for option in given) else [f"--input={root}", *given]
        assert main(["prepare", *arguments, f"--output={tmp_path}/{number}", "--splits=train=1", "--no_report", "--check=header"]) == 0
        assert json.loads((tmp_path / f"{number}/manifest.json").read_text())["num_inputs"] == 4


def test_rejects_folders_if_only_some_are_named_like_splits(tmp_path):
    for folder in ("train", "more"):
        write_files(tmp_path / folder, {"annotations/a.xml": xml(obj()), "images/a.jpg": IMAGE})
    with pytest.raises(UserError, match="'train' .* 'more' .*--split_folders"):
        list_voc(tmp_path)
    assert set(list_voc(tmp_path, split_folders=True).splits.values()) == {"train", "more"}


class Match(NamedTuple):
    annotations: Mapping[str, str]  # path -> class and `<filename>`
    images: Sequence[str]
    expected: Mapping[str, str]  # image -> its split if there are lists, or else its class
    reasons: Mapping[str, str] = {}  # of dead letters
    lists: Mapping[str, str] = {}
    num_ignored: int = 0


DEVKIT = {f"Annotations/{name}.xml": "cat" for name in "abcd"}, [f"JPEGImages/{name}.jpg" for name in "abcd"]
YEARS = [f"VOC20{year}/{{}}/{name}" for year in ("07", "12") for name in "ab"]
OF_YEARS = {f"{path.format('Annotations')}.xml": "cat" for path in YEARS}, [f"{path.format('JPEGImages')}.jpg" for path in YEARS]
STALE = ["a.JPG", "gone.jpg", "/home/someone/gone.jpg", "C:\\pictures\\a.jpg", "a"]
OTHER_NAMES = {f"annotations/{n}.xml": f"{n} {name}" for n, name in zip("pqrst", ("x.jpg", "y.jpg", "images\\z.png", "w", "v.jpg"))}
ALONE = ["images/plain.jpg", "images/notes.txt", "images/.hidden.jpg", "annotations/list.csv"]


def in_splits(*splits: str) -> dict[str, str]:
    return dict(zip(DEVKIT[1], splits))


MATCHES = {
    "lists": Match(
        *DEVKIT,
        in_splits("train", "validation", "test"),
        lists={"train": "a\n", "val": "b\r\n\n", "trainval": "a\nb\n", "test": "c", "cat_train": "d 1\n"},
        num_ignored=2,  # the image and the annotation of d
    ),
    "trainval": Match(*DEVKIT, in_splits("train", "train", "test", "test"), lists={"trainval": "a\nb\n", "test": "c\nd\n"}),
    "duplicate and missing names in lists": Match(
        *DEVKIT,
        in_splits("train", "train", "validation"),
        {"ImageSets/Main/val.txt:2": "duplicate", "ImageSets/Main/val.txt:3": "missing"},
        {"train": "a\nb\n", "val": "c\na\nz\n"},
        num_ignored=2,
    ),
    "lists of two years": Match(
        *OF_YEARS,
        dict(zip(OF_YEARS[1], ("train", "validation", "validation", "train"))),
        lists={"07/train": "a\n", "07/val": "b\n", "12/train": "b\n", "12/val": "a\n"},
    ),
    **{f"stale name {name}": Match({"annotations/a.xml": f"cat {name}"}, ["images/a.jpg"], {"images/a.jpg": "cat"}) for name in STALE},
    "names of other images": Match(
        OTHER_NAMES,
        ["images/x.jpg", "images/y.JPG", "images/images/z.png", "images/w.bmp"],
        {"images/x.jpg": "p", "images/y.JPG": "q", "images/images/z.png": "r", "images/w.bmp": "s"},
        {"annotations/t.xml": "missing"},
    ),
    "two possible images": Match(
        {"annotations/a.xml": "cat b.jpg", "annotations/b.xml": "dog b.jpg"},
        ["images/a.jpg", "images/b.jpg"],
        {"images/b.jpg": "dog"},
        {"annotations/a.xml": "ambiguous"},
    ),
    "images with the same name": Match(
        {"a.xml": "cat a.png", "b.xml": "cat"},
        ["a.jpg", "a.png", "b.jpg", "b.png"],
        {"a.png": "cat"},
        {"a.jpg": "no_annotation", "b.jpg": "no_annotation", "b.png": "no_annotation", "b.xml": "ambiguous"},
    ),
    "without a counterpart": Match(
        {"annotations/a.xml": "cat", "annotations/lonely.xml": "cat"},
        ["images/a.jpg", *ALONE],
        {"images/a.jpg": "cat"},
        {"annotations/lonely.xml": "missing", "images/plain.jpg": "no_annotation"},
        num_ignored=3,
    ),
    "extensions in another case": Match(
        {"annotations/a.xml": "cat", "annotations/a.XML": "cat"}, ["images/a.jpg"], {"images/a.jpg": "cat"}, {"annotations/a.xml": "ambiguous"}
    ),
}


@pytest.mark.parametrize("case", MATCHES)
def test_images_and_annotations_are_matched(case, tmp_path):
    match = MATCHES[case]
    for path, text in match.annotations.items():
        label, _, filename = text.partition(" ")
        write_files(tmp_path, {path: xml(obj(label), filename=filename)})
    write_files(tmp_path, dict.fromkeys(match.images, IMAGE))
    for name, text in match.lists.items():
        year, _, name = name.rpartition("/")
        write_files(tmp_path, {f"{f'VOC20{year}/' if year else ''}ImageSets/Main/{name}.txt": text.encode()})
    listed = list_voc(tmp_path)
    actual = listed.splits if match.lists else {key: listed.labels(key)[0] for key in listed.images}
    assert (actual, listed.reasons, listed.num_ignored) == (match.expected, match.reasons, match.num_ignored)
    assert set(list_voc(tmp_path, split_folders=False).splits.values()) == {None}


def test_broken_links_are_dead_letters(tmp_path):
    root = write_files(tmp_path, {"annotations/a.xml": xml(obj()), "images/a.jpg": IMAGE, "images/b.jpg": IMAGE})
    for name in "bc":
        (root / f"annotations/{name}.xml").symlink_to("nowhere.xml")
    assert list_voc(root).reasons == {"images/b.jpg": "symlink", "annotations/c.xml": "symlink"}


def test_rejects_a_list_that_is_not_text(tmp_path):
    write_files(tmp_path, {"Annotations/a.xml": xml(obj()), "JPEGImages/a.jpg": IMAGE, "ImageSets/Main/train.txt": b"\xff\xfe\x00"})
    with pytest.raises(UserError, match="ImageSets/Main/train.txt cannot be read"):
        list_voc(tmp_path)


def test_large_folders_are_listed_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(paired_source, "PART_FILES", 3)
    write_files(
        tmp_path, {f"{name}.xml": xml(obj()) for name in range(10)} | {f"{name}.jpg": IMAGE for name in range(10)}
    )
    listed = list_voc(tmp_path)
    assert len(listed.images) == 10 and len(listed.parts) == 4
    assert listed.parts == list_voc(tmp_path).parts


def test_unpaired_files_do_not_enlarge_parts(tmp_path):
    num = 100
    write_files(tmp_path, {f"annotations/x{name}.xml": xml(obj(), filename=f"{name}.jpg") for name in range(num)})
    write_files(
        tmp_path,
        {f"images/{name}.jpg": IMAGE for name in range(2 * num)} | {f"images/{name}.txt": b"" for name in range(num)},
    )
    (tmp_path / "images/z.jpg").symlink_to("nowhere.jpg")
    listed = list_voc(tmp_path)
    assert max(map(len, listed.parts)) < 500
    assert (len(listed.images), len(listed.letters), listed.num_ignored) == (num, num + 1, num)


class BlockingFiles:
    """A fake file system in which each read waits until `num` reads have started. A read fails after 60 seconds."""

    def __init__(self, num: int) -> None:
        self.barrier = threading.Barrier(num)
        self.num_reads = 0

    def read_range(self, path: str, start: int, num_bytes: int) -> bytes:
        self.num_reads += 1
        self.barrier.wait(timeout=60)
        return xml(obj(os.path.basename(path)))


def test_xml_files_of_an_object_store_are_read_in_parallel():
    """Sequential reads would never pass the barrier."""
    source = Voc.__new__(Voc)
    source.root, source._files = "s3://made/voc", BlockingFiles(8)
    paths = [f"{number}.xml" for number in range(24)]
    assert list(source._read_all(paths)) == [xml(obj(path)) for path in paths] and source._files.num_reads == 24


# Content of annotations


def test_parses_objects_and_flags(tmp_path):
    reordered = "<object><bndbox><ymax>40.5</ymax><xmax>30</xmax><xmin>1e0</xmin><ymin> 2 </ymin></bndbox><name> cat </name></object>"
    flagged = obj("dog", (5, 6, 7, 8), "<difficult>1</difficult><truncated>True</truncated>")
    parts = "<part><name>head</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></part>"
    data = xml(reordered, flagged, obj("man", (0, 0, 60, 50), parts + "<truncated>Unspecified</truncated><difficult/>"))
    listed = list_annotation(tmp_path, data)
    assert listed.objects("a.jpg") == Objects(
        boxes=((2.0, 1.0, 40.5, 30.0), (6.0, 5.0, 8.0, 7.0), (0.0, 0.0, 50.0, 60.0)),
        labels=("cat", "dog", "man"),
        flags={"is_difficult": (0, 1, 0), "is_truncated": (0, 1, 0)},
        image_size=(50, 60),
    )
    assert listed.unused == {"part"}


@pytest.mark.parametrize("root", ["Annotation", "ANNOTATION"])
def test_root_tag_may_have_any_case(root, tmp_path):
    data = xml(obj()).replace(b"annotation>", root.encode() + b">")
    assert list_annotation(tmp_path, data).labels("a.jpg") == ("cat",)


SIZES = {
    "": None,
    "<size/>": None,
    "<size><width>0</width><height>0</height></size>": None,
    "<size><width>60</width></size>": None,
    "<size><width>60.0</width><height>50</height><depth>3</depth></size>": (50, 60),
}


@pytest.mark.parametrize("size", SIZES)
def test_parses_image_sizes(size, tmp_path):
    objects = list_annotation(tmp_path, xml(size=size)).objects("a.jpg")
    assert objects == Objects((), (), {"is_difficult": (), "is_truncated": ()}, SIZES[size])


BILLION_LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol"><!ELEMENT lolz (#PCDATA)>
<!ENTITY lol1 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;"><!ENTITY lol2 "&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;">
]><annotation><filename>&lol2;</filename></annotation>"""
# Content of an annotation, reason, and words of the message.
HOSTILE = {
    "billion laughs": (BILLION_LAUGHS, "bad_xml", "DTD"),
    "external entity": (b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation><filename>&x;</filename></annotation>', "bad_xml", "DTD"),
    "parameter entity": (b'<!DOCTYPE a [<!ENTITY % x SYSTEM "http://localhost:1/x.dtd"> %x;]><annotation/>', "bad_xml", "DTD"),
    "DTD": (b'<!DOCTYPE annotation SYSTEM "annotation.dtd"><annotation/>', "bad_xml", "DTD"),
    "undefined entity": (b"<annotation><filename>&x;</filename></annotation>", "bad_xml", "not valid XML"),
    "root with a similar name": (b"<annotations/>", "bad_xml", "<annotations>"),
    "two names": (xml(obj(inner="<name>dog</name>")), "bad_xml", "<name>"),
    "two boxes": (xml(obj(inner="<bndbox><xmin>1</xmin></bndbox>")), "bad_xml", "<bndbox>"),
    "duplicate side": (xml(obj().replace("<xmin>", "<xmin>5</xmin><xmin>")), "bad_xml", "<xmin>"),
    "two flags": (xml(obj(inner="<difficult>0</difficult><difficult>1</difficult>")), "bad_xml", "<difficult>"),
    "two sizes": (xml(size="<size/><size/>"), "bad_xml", "<size>"),
    "two file names": (xml(filename="a.jpg</filename><filename>b.jpg"), "bad_xml", "<filename>"),
    "unknown root": (b"<html><object/></html>", "bad_xml", "<html>"),
    "empty file": (b"", "bad_xml", "not valid XML"),
    "JPEG file": (b"\xff\xd8\xff\xe0", "bad_xml", "not valid XML"),
    "truncated": (xml(obj())[:-20], "bad_xml", "not valid XML"),
    "unknown encoding": (b'<?xml version="1.0" encoding="x-nothing"?><annotation/>', "bad_xml", "not valid XML"),
    "unsupported encoding": (b'<?xml version="1.0" encoding="utf-7"?><annotation/>', "bad_xml", "not valid XML"),
    "missing box": (xml("<object><name>cat</name></object>"), "bad_xml", "object 1 has no <bndbox>"),
    "box of a part only": (xml(f"<object><name>cat</name><part>{obj()}</part></object>"), "bad_xml", "object 1 has no <bndbox>"),
    "three sides": (xml(obj(box=(1, 2, 3))), "bad_box", "object 1 has <ymax> ''"),
    "NaN": (xml(obj(), obj(box=("nan", 2, 3, 4))), "bad_box", "object 2 has <xmin> 'nan'"),
    "infinity": (xml(obj(box=(1, "-inf", 3, 4))), "bad_box", "'-inf'"),
    "too large number": (xml(obj(box=(1, 2, "1e999", 4))), "bad_box", "'1e999'"),
    "number with a million digits": (xml(obj(box=(1, 2, "9" * 10**6, 4))), "bad_box", "finite number"),
    "number with underscores": (xml(obj(box=("1_0", 2, 3, 4))), "bad_box", "'1_0'"),
    "non-ASCII digits": (xml(obj(box=("\u0663", 2, 3, 4))), "bad_box", "finite number"),
    "size with many digits": (xml(size=f"<size><width>{'9' * 5000}</width><height>5</height></size>"), "bad_box", "image side"),
    "negative size": (xml(size="<size><width>-3</width><height>5</height></size>"), "size_mismatch", "-3"),
    "rotated box": (xml("<object><name>car</name><robndbox><cx>5</cx></robndbox></object>"), "bad_xml", "<robndbox>"),
    "empty name": (xml(obj("")), "bad_label", "object 1"),
    "name with a line break": (xml(obj("a\nb")), "bad_label", "object 1"),
    "name with a control character": (xml(obj("a&#x9b;b")), "bad_label", "object 1"),
    "too long name": (xml(obj("a" * 257)), "bad_label", "object 1"),
    "negative class": (xml(obj("-1")), "bad_label", "object 1"),
    "invalid flag": (xml(obj(inner="<difficult>2</difficult>")), "bad_annotation", "object 1 has <difficult> '2'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_invalid_annotation_is_a_dead_letter(case, tmp_path):
    data, reason, message = HOSTILE[case]
    listed = list_annotation(tmp_path, data)
    (letter,) = listed.letters.values()
    assert not listed.images and (letter.path, letter.stage, letter.reason) == ("a.xml", "list", reason), letter
    assert message in letter.message and letter.message.isprintable() and len(letter.message) < 500


@pytest.mark.slow
def test_deep_nesting_is_parsed_or_rejected(tmp_path):
    depth = 100_000
    assert list_annotation(tmp_path, b"<annotation>" + b"<a>" * depth + b"</a>" * depth + b"</annotation>").labels("a.jpg") == ()
    assert list_annotation(tmp_path, b"<annotation>" + b"<object>" * depth).reasons == {"a.xml": "bad_xml"}


def test_too_large_file_is_not_read(tmp_path):
    write_files(tmp_path, {"a.xml": b"", "a.jpg": IMAGE})
    with open(tmp_path / "a.xml", "r+b") as file:
        file.truncate(64 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    listed = list_voc(tmp_path)
    assert listed.reasons == {"a.xml": "bad_annotation"} and "more than 4194304 bytes" in listed.letters["a.xml"].message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_links_and_paths_to_outside_are_dead_letters(tmp_path):
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
    listed = list_voc(root)
    assert not listed.images
    assert listed.reasons == {
        "a.jpg": "outside",
        "b.jpg": "outside",
        "b.xml": "missing",
        "c.xml": "outside",
        "f": "outside",
        "gone.jpg": "symlink",
    }


def test_link_inside_the_input_is_followed(tmp_path):
    root = write_files(
        tmp_path, {"annotations/a.xml": xml(obj()), "images/a.jpg": IMAGE, "annotations/b.xml": xml(obj("dog"))}
    )
    (root / "images/b.jpg").symlink_to(root / "images/a.jpg")
    assert list_voc(root).labels("images/b.jpg") == ("dog",)


# Options


@pytest.mark.parametrize("files", [{}, {"a.jpg": IMAGE}, {"Annotations/notes.txt": b"", "JPEGImages/a.jpg": IMAGE}])
def test_rejects_a_folder_without_annotations(files, tmp_path):
    root = write_files(tmp_path, files)
    with pytest.raises(UserError, match="no XML file.*--label=none"):
        list_voc(root)
    listed = list_voc(root, source={"labels": ()})
    assert len(listed.images) == ("a.jpg" in str(files)) and all(image.values is None for image in listed.images.values())
