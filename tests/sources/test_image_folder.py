"""Tests how the source `image_folder` reads classes and splits, ignores files, follows links and reports errors."""

import os
import pathlib
import subprocess
import tempfile
import unicodedata
from typing import Any, Callable, Iterable
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import beam_pipelines
import forked_python
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files import file_listing
from beam_pipelines.sources.formats.image_folder.image_folder import ImageFolder
from beam_pipelines.sources.files.other_files import is_ignored
from beam_pipelines.sources.registry import find_kind
from made_images import jpeg, write_class_folders, write_files
from made_references import list_parts

NFC, NFD = unicodedata.normalize("NFC", "Lo\u0308we"), unicodedata.normalize("NFD", "Lo\u0308we")
NOT_UTF8 = os.fsdecode(b"caf\xe9")


NO_LABELS = {"source": SourceConfig(kind=find_kind("image_folder"), labels=())}


class Listing:
    """The listing of all parts of a folder."""

    def __init__(self, root: os.PathLike[str] | str, **options: Any) -> None:
        self.source = ImageFolder(PrepareOptions(input=os.fspath(root), output="out", name="flowers", **options))
        actual, facts = list_parts(self.source, self.source.parts())
        facts.problems.unexpected_files.reject(self.source.root)
        self.images = sorted(image for image in actual if isinstance(image, InputRecord))
        self.dead_letters = {letter.path: letter for letter in actual if isinstance(letter, DeadLetter)}
        self.reasons = {path.rstrip("/"): letter.reason for path, letter in self.dead_letters.items()}
        self.labels = {image.path: image.label for image in self.images}
        self.splits = {image.path: image.split for image in self.images}
        self.classes, self.num_ignored = facts.schema.known_names("label"), facts.counts.num_ignored
        assert len(self.images) + len(self.dead_letters) == len(actual)


def make_folder(root: pathlib.Path, paths: Iterable[str]) -> pathlib.Path:
    """Writes files with arbitrary content, because the listing does not read the content. Paths that end in "/" are empty
    folders."""
    for path in paths:
        (root / path).mkdir(parents=True, exist_ok=True) if path.endswith("/") else None
    return write_files(root, {path: b"not looked at" for path in paths if not path.endswith("/")})


def assert_rejected(case: str, root: pathlib.Path, parts: Iterable[str], **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        Listing(root, **options)
    message = str(caught.value)
    for part in parts:
        assert part in message, (case, message)
    assert message.isprintable(), case
    return message


# Classes and splits

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "Train"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "VAL"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# Maps each case to options, and a mapping from paths to (class, split).
LAYOUTS = {
    "classes": ({}, {"cat/1.jpg": ("cat", None), "cat/2.jpg": ("cat", None), "dog/1.jpg": ("dog", None)}),
    "nested classes": (
        {},
        {f"{label}/1.jpg": (label, None) for label in ("animals/cat", "animals/cat/wild", "animals", "plants/rose")},
    ),
    **{
        f"split folder {name}": ({}, {f"{name}/cat/1.jpg": ("cat", split), f"{name}/animals/dog/1.jpg": ("animals/dog", split)})
        for name, split in SPLIT_NAMES.items()
    },
    "folders of the same split": ({}, {f"{name}/cat/1.jpg": ("cat", SPLIT_NAMES[name]) for name in ("train", "val", "valid", "test")}),
    "mixed names, splits": ({"split_folders": True}, {"train/a/1.jpg": ("a", "train"), "cat/b/1.jpg": ("b", "cat")}),
    "mixed names, classes": ({"split_folders": False}, {"train/a/1.jpg": ("train/a", None), "cat/b/1.jpg": ("cat/b", None)}),
    "class called train": ({"split_folders": False}, {"train/1.jpg": ("train", None), "bus/1.jpg": ("bus", None)}),
    "splits of any name": ({"split_folders": True}, {f"fold_{number}/cat/1.jpg": ("cat", f"fold_{number}") for number in (1, 2)}),
    "splits divided again": (
        {"splits": {"train": 1}, "split_folders": False},
        {"train/cat/1.jpg": ("train/cat", None), "test/cat/1.jpg": ("test/cat", None)},
    ),
    "no labels": (NO_LABELS, {"1.jpg": ("", None), "2.jpg": ("", None)}),
    "splits without labels": ({**NO_LABELS, "split_folders": True}, {"train/1.jpg": ("", "train"), "test/1.jpg": ("", "test")}),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_folders_give_classes_and_splits(tmp_path, case):
    options, expected = LAYOUTS[case]
    listed = Listing(make_folder(tmp_path, expected), **options)
    assert listed.images == sorted(InputRecord(path, path, label, split) for path, (label, split) in expected.items())
    assert listed.classes == {label for label, _ in expected.values() if label} and listed.num_ignored == 0


def touch(path: pathlib.Path) -> None:
    path.write_bytes(b"")


# Maps each case to paths, options, words of the error message, and files beside them: name -> function that creates it.
REJECTED = {
    "mixed names": (["train/a/1.jpg", "cat/b/1.jpg"], {}, ["'train'", "'cat'", "--split_folders=yes", "--split_folders=no"], {}),
    "class called train": (["train/1.jpg", "bus/1.jpg"], {}, ["'train'", "'bus'", "--split_folders=no"], {}),
    **{  # The name of a split is used in file names, in options and by TensorFlow Datasets.
        f"split {name!r}": (["train/cat/1.jpg", f"{name}/cat/1.jpg"], {"split_folders": True}, ["split", "letters, digits and '_'"], {})
        for name in ("my fold", "fold-1", "1st", NOT_UTF8, "a\nb")
    },
    "splits and shares": (
        ["train/cat/1.jpg", "test/cat/1.jpg"],
        {"splits": {"train": 1}},
        ["--splits", "train, test", "--split_folders=no", "--divide train"],
        {},
    ),
    "classes as splits": (["cat/1.jpg", "dog/1.jpg"], {"split_folders": True}, ["'cat', 'dog' are read as splits", "SPLIT/CLASS/IMAGE"], {}),
    "images beside splits": (["train/1.jpg"], {**NO_LABELS, "split_folders": True}, ["--split_folders=yes: ", "has files beside"], {"2.jpg": touch}),
    "link beside splits": (
        ["train/1.jpg"],
        {**NO_LABELS, "split_folders": True},
        ["has files beside"],
        {"link": lambda path: path.symlink_to("nowhere")},
    ),
    "image beside classes": (["cat/1.jpg"], {}, ["'1.jpg'", "beside the class folders", "CLASS/IMAGE"], {"1.jpg": touch}),
    "text file beside classes": (["cat/1.jpg"], {}, ["notes.txt", "(.txt)", "move them"], {"notes.txt": touch}),
    "link to an image": (["cat/1.jpg"], {}, ["'1.jpg'"], {"1.jpg": lambda path: path.symlink_to("cat/1.jpg")}),
    "broken link": (["cat/1.jpg"], {}, ["link"], {"link": lambda path: path.symlink_to("nowhere")}),
    "link to itself": (["cat/1.jpg"], {}, ["link"], {"link": lambda path: path.symlink_to("link")}),
    "pipe": (["cat/1.jpg"], {}, ["pipe"], {"pipe": os.mkfifo}),
    "name that is not UTF-8": (["cat/1.jpg"], {}, ["caf\\\\xe9.jpg"], {f"{NOT_UTF8}.jpg": touch}),
    "no class folders": (["1.jpg", "2.jpg"], {}, ["no class folders", "--label none", "CLASS/IMAGE"], {}),
    "no class folders in splits": (["train/1.jpg", "test/2.jpg"], {}, ["no class folders", "--label none", "SPLIT/CLASS/IMAGE"], {}),
    "image beside the classes of a split": (["train/cat/1.jpg", "train/1.jpg"], {}, ["'train/1.jpg'", "SPLIT/CLASS/IMAGE"], {}),
    "link to a split": (["train/cat/1.jpg"], {}, ["'test' is a link"], {"test": lambda path: path.symlink_to("train")}),
    "empty class": (["cat/1.jpg", "dog/"], {}, ["class 'dog'", "'dog/'"], {}),
    "empty nested class": (["cat/1.jpg", "cat/wild/"], {}, ["class 'cat/wild'", "'cat/wild/'"], {}),
    "only hidden files": (["cat/1.jpg", "dog/.1.jpg"], {}, ["class 'dog'"], {}),
    "class empty in every split": (["train/cat/1.jpg", "train/dog/", "test/dog/"], {}, ["class 'dog'"], {}),
    "no images": (["cat/"], {}, ["no image", ".jpg"], {}),
    "only hidden folders": ([".git/1.jpg"], {}, ["no image"], {}),
    "empty split folders": (["train/", "test/"], {}, ["no image"], {}),
    "class without images": (["cat/1.jpg", "cat/raw/1.cr2"], {"ignore": ("*.cr2",)}, ["'cat/raw'"], {}),
    "ignored images of a class": (["cat/1.jpg", "dog/1.jpg"], {"ignore": ("dog/*",)}, ["'dog'"], {}),
    "arrays": (["cat/1.jpg", "cat/1.npy", "dog/2.jpg"], {}, ["cat/1.npy", "--source=masks", "--ignore='*.npy'"], {}),
    "text file": (["cat/1.jpg", "cat/1.txt"], {}, ["cat/1.txt", "(.txt)", ".png, .gif, .bmp, .webp, .tif", "--source"], {}),
    "upper case": (["cat/1.jpg", "cat/1.TXT"], {}, ["cat/1.TXT", "--source"], {}),
    "backup": (["cat/1.jpg", "cat/1.jpg~"], {}, ["cat/1.jpg~", "(.jpg~)"], {}),
    "line break": (["cat/1.jpg", "cat/a\nb.txt"], {}, ["b.txt", "--source"], {}),
}


@pytest.mark.parametrize("case", REJECTED)
def test_unclear_folders_are_rejected(tmp_path, case):
    paths, options, words, others = REJECTED[case]
    make_folder(tmp_path, paths)
    for name, make in others.items():
        make(tmp_path / name)
    assert_rejected(case, tmp_path, words, **options)


def test_advised_option_leaves_files_out(tmp_path):
    root = make_folder(tmp_path, ["cat/1.jpg", "cat/1.npy", "dog/2.jpg", "train/1.txt"])
    assert list(Listing(root, ignore=("*.npy", "train")).labels) == ["cat/1.jpg", "dog/2.jpg"]
    assert list(Listing(root, **NO_LABELS, split_folders=False, ignore=("*.npy", "*.txt")).labels) == ["cat/1.jpg", "dog/2.jpg"]


# Names


def test_keys_and_classes_are_in_nfc_and_paths_are_unchanged(tmp_path):
    make_folder(tmp_path, [f"{NFD}/{NFD}.jpg", f"{NFC}/2.jpg", f"cat/{NFD}.jpg", f"cat/{NFC}.jpg"])
    listed = Listing(tmp_path)
    assert listed.classes == {NFC, "cat"}
    assert {(image.key, image.path, image.label) for image in listed.images} == {
        (f"{NFC}/{NFC}.jpg", f"{NFD}/{NFD}.jpg", NFC),
        (f"{NFC}/2.jpg", f"{NFC}/2.jpg", NFC),
        # The listing does not compare all keys; the shuffle rejects duplicates.
        (f"cat/{NFC}.jpg", f"cat/{NFD}.jpg", "cat"),
        (f"cat/{NFC}.jpg", f"cat/{NFC}.jpg", "cat"),
    }


def test_file_name_that_is_not_utf8_is_a_dead_letter(tmp_path):
    listed = Listing(make_folder(tmp_path, ["cat/1.jpg", f"cat/{NOT_UTF8}.jpg", f"cat/1.{NOT_UTF8}"]))
    assert list(listed.labels) == ["cat/1.jpg"]
    assert listed.reasons == {"cat/caf\\xe9.jpg": "not_utf8", "cat/1.caf\\xe9": "not_utf8"}


@pytest.mark.parametrize("name", [NOT_UTF8, "a\nb", "a\rb", "a\tb", "a\x1b[31mb", "a\x7fb", "a\u2028b", "a\x85b"])
def test_rejects_class_names_with_control_characters_or_invalid_utf8(tmp_path, name):
    shown = ascii(name)[1:-1].replace("\\udce9", "\\xe9")
    for location, path in (("top", f"{name}/1.jpg"), ("nested", f"pets/{name}/1.jpg")):
        message = assert_rejected(name, make_folder(tmp_path / location, ["cat/1.jpg", path]), ["UTF-8"])
        assert shown in message.replace("\\\\", "\\")  # ignores escaping


@pytest.mark.parametrize(
    "name",
    [
        *("Golden Retriever", "Löwenzahn", "蒲公英", "黄　花", "10\u00a0kg", "گل\u200cها", "👩\u200d🌾"),
        *("it's \\ \"so\"", "a,b=c", "--splits"),
    ],
)
def test_class_names_may_be_in_any_language(tmp_path, name):
    assert Listing(make_folder(tmp_path, [f"{name}/1.jpg"])).classes == {unicodedata.normalize("NFC", name)}


# Links, pipes and devices


# Maps the name of a link in the folder of a class to its target, and to words of the message; None: the link is followed.
LINKS = {
    "same_folder.jpg": ("1.jpg", None),
    "other_class.jpg": ("../dog/1.jpg", None),
    "absolute.jpg": ("{root}/dog/1.jpg", None),
    "link_to_link.jpg": ("other_class.jpg", None),
    "around.jpg": ("../../in/dog/1.jpg", None),
    "out.jpg": ("{root}/../outside/1.jpg", "outside"),
    "out_relative.jpg": ("../../outside/1.jpg", "outside"),
    "out_by_link.jpg": ("out.jpg", "outside"),
    "out_to_similar_name.jpg": ("../../in and more/1.jpg", "outside"),
    "folder.jpg": ("../dog", "to a folder"),
    "folder": ("../dog/big", "to a folder"),
    "folder_out": ("../../outside/more", "outside"),
    "up": ("..", "to a folder"),
    "broken.jpg": ("nowhere.jpg", "broken"),
    "broken_out.jpg": ("../../outside/nowhere.jpg", "outside"),
    "loop.jpg": ("loop.jpg", "broken"),
    "to_pipe.jpg": ("pipe.jpg", ""),
    "null.jpg": ("/dev/null", "outside"),
}


def test_links_out_broken_links_and_pipes_are_dead_letters(tmp_path):
    root = make_folder(tmp_path / "in", ["cat/1.jpg", "dog/1.jpg", "dog/big/1.jpg"])
    make_folder(tmp_path, ["outside/1.jpg", "outside/more/1.jpg", "in and more/1.jpg"])
    for name, (target, _) in LINKS.items():
        (root / "cat" / name).symlink_to(target.format(root=root))
    for name in ("pipe.jpg", "pipe"):
        os.mkfifo(root / "cat" / name)
    listed = Listing(root)
    followed = {name for name, (_, message) in LINKS.items() if message is None}
    assert {image.key for image in listed.images if image.label == "cat"} == {f"cat/{name}" for name in {"1.jpg", *followed}}
    rejected = {name: ("symlink", message) for name, (_, message) in LINKS.items() if message is not None}
    rejected |= dict.fromkeys(("pipe.jpg", "pipe"), ("not_a_file", "neither"))
    assert listed.reasons == {f"cat/{name}": reason for name, (reason, _) in rejected.items()}
    for name, (_, message) in rejected.items():
        assert message in listed.dead_letters[f"cat/{name}"].message and listed.dead_letters[f"cat/{name}"].stage == "list", name


def test_link_to_a_class_folder_is_a_dead_letter(tmp_path):
    root = make_folder(tmp_path / "in", ["cat/1.jpg"])
    outside = make_folder(tmp_path / "outside", ["1.jpg"])
    for name, target in (("copy", "cat"), ("out", outside), ("itself", ".")):
        (root / name).symlink_to(target)
    listed = Listing(root)
    assert list(listed.labels) == ["cat/1.jpg"]
    assert listed.classes == {"cat"}
    assert listed.reasons == dict.fromkeys(["copy", "out", "itself"], "symlink")


def test_label_none_makes_links_to_folders_dead_letters(tmp_path):
    root = make_folder(tmp_path, ["a/1.jpg", "b/.hidden"])
    targets = {"loop": "loop", "gone.jpg": "nowhere", "folder": "a", "2.jpg": "a/1.jpg"}
    for name, target in targets.items():
        (root / name).symlink_to(target)
    listed = Listing(root, **NO_LABELS)
    assert (set(listed.splits), listed.num_ignored) == ({"a/1.jpg", "2.jpg"}, 1)
    assert listed.reasons == dict.fromkeys(["loop", "gone.jpg", "folder"], "symlink")


def test_input_may_be_a_link(tmp_path, monkeypatch):
    make_folder(tmp_path / "real", ["cat/1.jpg"])
    (tmp_path / "real" / "cat" / "2.jpg").symlink_to(tmp_path / "real" / "cat" / "1.jpg")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    for case in (tmp_path / "link", "link", "link/", "./link/../link"):
        listed = Listing(case)
        assert listed.source.root == str(tmp_path / "real"), case
        assert set(listed.labels) == {"cat/1.jpg", "cat/2.jpg"}, case


# Ignored files


def test_hidden_and_system_files_are_ignored_and_counted(tmp_path):
    ignored = [
        ".DS_Store",
        ".git/config",
        ".git/objects/1",
        "Thumbs.db",
        "__MACOSX/cat/._1.jpg",
        "cat/.DS_Store",
        "cat/._1.jpg",
        "cat/.jpg",
        "cat/Thumbs.db",
        "cat/desktop.ini",
        "cat/Desktop.ini",
        "cat/1.jpg:Zone.Identifier",
        "cat/.thumbnails/1.jpg",
        f"cat/.{NOT_UTF8}",
        "cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg",
        "@eaDir/cat/1.jpg",
        "#recycle/cat/1.jpg",
        "$RECYCLE.BIN/1.jpg",
        "cat/.ipynb_checkpoints/1.jpg",
    ]
    make_folder(tmp_path, ["cat/1.jpg", *ignored])
    listed = Listing(tmp_path)
    assert (list(listed.labels), listed.dead_letters, listed.classes) == (["cat/1.jpg"], {}, {"cat"})
    assert listed.num_ignored == len(ignored) - 1, "a folder counts as one"


def test_files_that_match_ignore_are_ignored_and_counted(tmp_path):
    make_folder(tmp_path, ["cat/1.jpg", "cat/1.txt", "cat/2.txt", "cat/raw/1.cr2", "dog/1.jpg", "dog/LICENSE", "README.md"])
    cases = [
        ("names and a folder", ["*.txt", "raw", "LICENSE", "*.md"], {"cat/1.jpg", "dog/1.jpg"}, 5),
        ("paths", ["cat/*.txt", "cat/raw", "dog/LICENSE", "README.md"], {"cat/1.jpg", "dog/1.jpg"}, 5),
        ("class", ["*.txt", "raw", "dog", "*.md"], {"cat/1.jpg"}, 5),
        ("character classes", ["[12].txt", "*.[cm]??", "LICENSE", "raw", "*.md"], {"cat/1.jpg", "dog/1.jpg"}, 5),
    ]
    for case, ignore, images, num_ignored in cases:
        listed = Listing(tmp_path, ignore=tuple(ignore))
        assert (set(listed.labels), listed.num_ignored) == (images, num_ignored), case


# Rejected files and folders


def test_accepts_every_known_extension_in_any_case(tmp_path):
    names = [f"{i}{extension}" for i, e in enumerate(IMAGE_EXTENSIONS) for extension in (e, e.upper(), e.title()) if e != ".npy"]
    assert set(IMAGE_EXTENSIONS) == {".jpg", ".jpeg", ".jpe", ".jfif", ".heic", ".heif", ".png", ".gif", ".bmp", ".webp", ".npy"} | {
        *(".tif", ".tiff", ".avif", ".jp2", ".ppm", ".pgm", ".pnm")
    }
    make_folder(tmp_path, [f"cat/{name}" for name in [*names, "a.b.jpg", "x..jpg", "1.png.jpg"]])
    assert len(Listing(tmp_path).images) == len(names) + 3


VOC = b"<annotation><filename>1.jpg</filename></annotation>"


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("1.image", b"II*\0", ["TIFF", "Rename them to .tif"]),
        ("1.image", b"\xff\xd8\xff", ["JPEG", "Rename them to .jpg"]),
        *((f"1{end}", b"?", [f"1{end}"]) for end in (".txt", ".json", ".xml", ".csv", ".parquet", ".tfrecord", ".tar")),
        ("1.psd", b"8BPS\0\1", ["Photoshop", "magick"]),
        ("1.pdf", b"%PDF-1.7", ["PDF", "pdftoppm"]),
        ("1.svg", b"<svg/>", ["SVG", "rsvg-convert"]),
        ("1.txt", b"0 0.5 0.5 0.25 0.5\n", ["YOLO", "--source=yolo"]),
        ("1.txt", b"0 0.1 0.1 0.2 0.1 0.2 0.2\n", ["YOLO", "--source=yolo"]),
        ("1.txt", b"1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 ship 0\n", ["DOTA", "--source=coco"]),
        ("list.txt", b"cat/1.jpg 0\n", ["--source=text"]),
        ("1.json", b'{"shapes": [], "imagePath": "1.jpg"}', ["LabelMe", "--source=labelme"]),
        ("all.json", b'{"images": [{"file_name": "1.jpg"}], "annotations": []}', ["COCO", "--image_root"]),
        ("1.xml", VOC, ["--source=voc"]),
        ("1.xml", b"<annotations></annotations>", ["CVAT", "--source=cvat"]),
        ("rows.csv", b"", ["--input", "rows.csv", "--image_root"]),
        ("rows.csv", b"id;name\n1.jpg;x\n", ["--image_root=", "/cat --image_column=id "]),
        ("rows.csv", b"name,id_code\nx,1\n", ["/cat --image_column=id_code --image_suffix=.jpg"]),
        ("rows.parquet", b"PAR1", ["--input", "--image_root"]),
        ("a.tfrecord", b"", ["--source=tfrecord"]),
        ("a.tar", b"", ["--source=webdataset"]),
        ("a.npz", b"PK", ["--source=arrays"]),
        ("data_batch_1", b"\x80\x04x", ["pickle", ".npz"]),
        ("a.dcm", bytes(128) + b"DICM", ["DICOM", "PNG"]),
        ("picture", jpeg(0), ["JPEG", ".jpg"]),
    ],
)
def test_data_files_in_class_folders_are_named_without_ignore_advice(tmp_path, name, data, words):
    write_files(tmp_path, {"cat/1.jpg": jpeg(0), f"cat/{name}": data})
    assert_rejected(name, tmp_path, words)
    with pytest.raises(UserError) as caught:
        Listing(tmp_path)
    assert "--ignore" not in str(caught.value)


@pytest.mark.parametrize("name", ["no extension", "1.jpg.", "x."])
def test_advised_ignore_pattern_excludes_only_the_unknown_file(tmp_path, name):
    make_folder(tmp_path, ["cat/1.jpg", f"cat/{name}"])
    with pytest.raises(UserError) as caught:
        Listing(tmp_path)
    advice = str(caught.value).partition("--ignore='")[2].partition("'")[0]
    assert advice
    listed = Listing(tmp_path, ignore=(advice,))
    assert (list(listed.labels), listed.num_ignored) == (["cat/1.jpg"], 1)


def test_all_unexpected_files_are_reported_at_once(tmp_path):
    made = ["train/cat/1.jpg", "train/cat/a.md", "test/cat/b.md", "test/dog/c.done", "val/x.jpg", "val/y.png", "test/owl/LICENSE"]
    root = make_folder(tmp_path, [*made, "train/dog/1.jpg"])
    expected = [
        *("'val/x.jpg', 'val/y.png'", "SPLIT/CLASS/IMAGE", "(.done, .md): test/cat/b.md, test/dog/c.done and 1 more"),
        *(", ".join(IMAGE_EXTENSIONS), "--ignore='*.done' --ignore='*.md'", "'owl' in 'test/owl/'", "--ignore='FOLDER'"),
    ]
    assert_rejected("all", root, [f"--input={root}: ", *expected])
    listed = Listing(root, ignore=("*.done", "*.md", "test/owl", "val"))
    assert (set(listed.labels), listed.num_ignored) == ({"train/cat/1.jpg", "train/dog/1.jpg"}, 5)


def test_report_of_unexpected_files_has_a_limited_length(tmp_path):
    root = make_folder(tmp_path, ["cat/1.jpg", *(f"cat/1.x{index:04d}" for index in range(1500)), *(f"dog{index}/a.txt" for index in range(99))])
    with pytest.raises(UserError) as caught:
        Listing(root)
    message = str(caught.value)
    assert "(.txt, .x0000, .x0001, .x0002, .x0003 and 995 more" in message
    assert "'*.x0003' and so on" in message and len(message) < 900 + len(str(root))


NOTES = (
    *("README", "README.md", "readme.txt", "ReadMe.html", "README-pictures.md", "README.dataset.txt", "LICENSE", "LICENCE.txt", "license.md"),
    *("LICENSE-CC-BY", "COPYING", "CHANGELOG.md", "CITATION.cff", "CITATION.bib", "SHA256SUMS", "md5sums.txt", "checksums.txt", "sha1sum.txt"),
    *("images.md5", "images.zip.sha256", ".gitattributes"),
)


def test_readme_license_and_checksum_files_are_ignored_and_counted(tmp_path):
    images = ["cat/1.jpg", "cat/README.jpg", "dog/license.png"]
    root = make_folder(tmp_path / "classes", [*images, *NOTES, *(f"cat/{name}" for name in NOTES)])
    listed = Listing(root)
    assert (set(listed.labels), listed.num_ignored) == (set(images), 2 * len(NOTES))
    root = make_folder(tmp_path / "splits", ["train/cat/1.jpg", "test/cat/1.jpg", *NOTES, *(f"train/{name}" for name in NOTES)])
    listed = Listing(root)
    assert (set(listed.splits.values()), listed.num_ignored) == ({"train", "test"}, 2 * len(NOTES))
    for name in ("notes.txt", "readme.csv", "readings.md", "checksum.json", "md5", "licensed.txt", "README.npy"):
        assert not is_ignored(name), name


def test_class_may_be_named_license(tmp_path):
    images = ["license/1.jpg", "notice/SUMS/1.jpg", "rose/1.jpg"]
    listed = Listing(make_folder(tmp_path / "classes", [*images, "rose/license"]))
    assert (set(listed.labels.values()), listed.num_ignored) == ({"license", "notice/SUMS", "rose"}, 1)
    (tmp_path / "classes/COPYING").symlink_to(tmp_path / "classes/rose")
    assert [*Listing(tmp_path / "classes").reasons.values()] == ["symlink"]
    assert not is_ignored("changes-00000-of-00002") and is_ignored("changes-2026")


def test_class_may_be_empty_in_one_split(tmp_path):
    root = make_folder(tmp_path, ["train/cat/1.jpg", "train/dog/1.jpg", "test/cat/1.jpg"])
    (root / "test" / "dog").mkdir()
    assert Listing(root).classes == {"cat", "dog"}


def test_error_names_an_unreadable_folder(tmp_path, monkeypatch):
    make_folder(tmp_path, ["cat/1.jpg", "dog/big/1.jpg"])
    scandir = os.scandir

    def deny_access(path: str) -> Any:  # root can read folders without permission
        if path.endswith("big"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny_access)
    assert_rejected("no permission", tmp_path, ["dog/big", "Permission denied"])


def test_listing_does_not_depend_on_file_system_order(tmp_path, monkeypatch):
    names = [f"{split}/{label}/{index}.jpg" for split in ("train", "test") for label in "abc" for index in range(5)]
    root = make_folder(tmp_path, names)
    expected = Listing(root)
    scandir = os.scandir

    class ReversedScandir:
        def __init__(self, path: str) -> None:
            with scandir(path) as entries:
                self._entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> list[os.DirEntry]:
            return self._entries

        def __exit__(self, *unused: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", ReversedScandir)
    assert Listing(root).images == expected.images


# Parts

FOLDER_NAMES = st.sampled_from(["train", "test", "Val", "a", "b", "a-b", "a0", NFC, NFD, ".git", os.fsdecode(b"\xe9"), "x\ny"])
FILE_NAMES = st.sampled_from(["1.jpg", "2.PNG", NFD + ".jpg", "3.npy", "n.txt", "m.done", "README", ".h", os.fsdecode(b"\xe9.jpg"), "link.jpg", "up"])
PATHS = st.lists(st.tuples(st.lists(FOLDER_NAMES, min_size=0, max_size=3), st.none() | FILE_NAMES), min_size=1, max_size=14)
OPTIONS = st.sampled_from(
    [{}, {"split_folders": True}, {"split_folders": False}, NO_LABELS, {"ignore": ("b", "*/a/*", "n.*")}]
)


def make_tree(root: pathlib.Path, paths: Iterable[tuple[list[str], str | None]]) -> None:
    for folders, name in paths:
        folder = root.joinpath(*folders)
        folder.mkdir(parents=True, exist_ok=True)
        if name in ("link.jpg", "up") and not os.path.lexists(folder / name):
            (folder / name).symlink_to("1.jpg" if name == "link.jpg" else "..")
        elif name:
            (folder / name).touch()


def list_in_order(order: Callable[[list[str]], Any], root: pathlib.Path, options: dict[str, Any]) -> Any:
    source = ImageFolder(PrepareOptions(input=str(root), output="out", name="made", **options))
    parts = source.parts()
    order(parts)
    inputs, actual = list_parts(source, parts)
    actual.problems.unexpected_files.reject(source.root)
    return sorted(map(repr, inputs)), actual


def outcome(order: Callable[[list[str]], Any], root: pathlib.Path, options: dict[str, Any]) -> Any:
    try:
        return list_in_order(order, root, options)
    except UserError as error:
        return str(error)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(paths=PATHS, options=OPTIONS, random=st.randoms(use_true_random=False))
def test_parts_in_any_order_list_the_same_as_a_single_part(paths, options, random):
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory, "in")
        make_tree(root, paths)
        in_parts = outcome(random.shuffle, root, options)
        with mock.patch.object(file_listing, "MAX_PARTS", 1):
            assert in_parts == outcome(len, root, options)


def test_class_folders_are_distributed_over_parts(tmp_path):
    splits = [f"{split}/c{label}/1.jpg" for split in ("train", "test") for label in range(3)]
    many = [f"c{label:03d}/1.jpg" for label in range(150)]
    cases = [
        ("classes", ["a/1.jpg", "b/deep/1.jpg", "c/1.jpg"], {}, 3),
        ("classes of splits", splits, {}, 6),
        ("five classes in each part", many, {}, 30),
        ("top-level folders without labels", [*many[:5], "1.jpg"], NO_LABELS, 5),
        ("no folders", ["1.jpg", "2.jpg"], NO_LABELS, 1),
    ]
    for case, paths, options, num_parts in cases:
        source = ImageFolder(PrepareOptions(str(make_folder(tmp_path / case, paths)), "out", "made", **options))
        parts = source.parts()
        assert len(parts) == num_parts and all(list_parts(source, [part])[0] for part in parts), case
        assert sorted(image.path for image in list_parts(source, parts)[0]) == sorted(paths), case


def test_error_does_not_depend_on_the_order_of_parts(tmp_path):
    paths = ["z/1.jpg", "b/x\ny/1.jpg", "d/x\ny/1.jpg", "c/n.txt", "e/3.npy"]
    root = make_folder(tmp_path, paths)
    for order in (list.sort, list.reverse):
        assert "folder 'b/x\\\\ny/'" in outcome(order, root, {})
        both = "arrays, such as 'e/3.npy'"
        assert both in outcome(order, root, {"ignore": ("x*",)})


# Command line


def run_prepare(root: pathlib.Path, output: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(beam_pipelines.__file__).parent.parent)}
    command = ["-m", "beam_pipelines", "prepare", "--input", root, "--output", output, *options]
    return forked_python.run(*command, env=env, preloaded=forked_python.BEAM)


@pytest.mark.slow
def test_same_key_in_two_unicode_forms_fails_naming_both_paths(tmp_path):
    root = write_class_folders(tmp_path / "in", {"cat": 20, "dog": 20})
    write_files(root, {f"cat/{NFC}.jpg": jpeg(101), f"cat/{NFD}.jpg": jpeg(102)})
    actual = run_prepare(root, tmp_path / "out", "--source=image_folder")
    assert (actual.returncode, actual.stdout) == (2, ""), actual.stderr
    assert actual.stderr.count("\n") == 1
    for part in (f"'cat/{NFC}.jpg': ", ascii(f"cat/{NFC}.jpg"), ascii(f"cat/{NFD}.jpg")):
        assert part in actual.stderr
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.slow
def test_prepares_a_folder_with_unusual_names(tmp_path):
    root = write_class_folders(tmp_path / "in put", {"cat": 20, "🌾 黄 花": 20})
    write_files(root, {f"cat/{NFD}.jpg": jpeg(101), "cat/a\nb.jpg": jpeg(102), f"cat/{NOT_UTF8}.jpg": jpeg(103)})
    actual = run_prepare(root, tmp_path / "out", "--max_bad_fraction", "0.1")
    assert actual.returncode == 0, actual.stderr
    assert "caf\\\\xe9.jpg" in (tmp_path / "out" / "dead_letters.jsonl").read_text()
    assert sorted(os.listdir(tmp_path)) == ["in put", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["input", "output"])
def test_path_that_is_not_utf8_works_or_gives_a_one_line_error(tmp_path, option):
    paths = {"input": tmp_path / "in", "output": tmp_path / "out", option: tmp_path / NOT_UTF8}
    write_class_folders(paths["input"], {"cat": 20, "dog": 20})
    actual = run_prepare(paths["input"], paths["output"], "--source=image_folder")
    assert actual.returncode in (0, 2), actual.stderr
    assert actual.stderr.count("\n") == (actual.returncode == 2), actual.stderr
    assert paths["output"].exists() == (actual.returncode == 0)


@pytest.mark.slow
def test_image_format_is_detected_from_content_not_extension(tmp_path):
    """Phones may name JPEG files .HEIC. Real HEIC images become dead letters."""
    names = ["cat/1.HEIC", "cat/2.jfif", "cat/3.jpe", "dog/4.png", "dog/5.heif", "dog/6.webp", "dog/7.jpg"]
    heic = b"\0\0\0\x24ftypheic" + bytes(100)
    write_files(tmp_path / "in", {name: heic if "5" in name else jpeg(index) for index, name in enumerate(names)})
    actual = run_prepare(tmp_path / "in", tmp_path / "out", "--max_bad_fraction=0.2", "--splits=train=1")
    assert actual.returncode == 0, actual.stderr
    (letter,) = (tmp_path / "out/dead_letters.jsonl").read_text().splitlines()
    assert "dog/5.heif" in letter and "HEIC" in letter
    assert '"jpeg": 6' in (tmp_path / "out/statistics.json").read_text()
