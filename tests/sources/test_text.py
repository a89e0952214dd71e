"""Tests that the source `text` reads the fields of lines, rejects invalid lines, and supports splits and options."""

import gzip
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from beam_pipelines.config.columns import parse_column, parse_labels
from beam_pipelines.config.prepare_config import SourceConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import FilePart, InputRecord
from beam_pipelines.errors import UserError
from beam_pipelines.sources.formats.text import TextList
from beam_pipelines.sources.registry import find_kind
from made_images import jpeg, write_files
from tf_input.dataset_format import Feature


class Listing:
    """Listing of all parts of an input."""

    def __init__(
        self,
        path: os.PathLike[str],
        labels: list[str] | None = None,
        features: list[str] = [],
        with_sizes: bool = False,
        config: dict[str, Any] = {},
        **options: Any,
    ) -> None:
        parsed = None if labels is None else parse_labels(labels)
        kept = tuple(parse_column("--feature", text, "text") for text in features)
        source = SourceConfig(kind=find_kind("text"), labels=parsed, features=kept, **options)
        made = PrepareJob(input=os.fspath(path), output="out", name="flowers", source=source, **config)
        self.source = TextList(made, with_sizes=with_sizes)
        actual = [element for part in self.source.parts() for element in self.source.list(part)]
        self.images = {image.path: image for image in actual if isinstance(image, InputRecord)}
        self.dead_letters = {letter.path: letter for letter in actual if isinstance(letter, DeadLetter)}
        assert len(self.images) + len(self.dead_letters) == len(actual)

    @property
    def labels(self) -> dict[str, str]:
        """Mapping from paths to classes."""
        return {path: image.label for path, image in self.images.items()}


def write_list(root: pathlib.Path, text: str | bytes, name: str = "list.txt") -> pathlib.Path:
    return write_files(root, {name: text.encode() if isinstance(text, str) else text}) / name


def test_line_has_a_path_and_a_label(tmp_path: pathlib.Path) -> None:
    listed = Listing(
        write_list(tmp_path, "cat/1.jpg 7\n\ncat/2.jpg\tsmall cat\r\n  cat/3.jpg   8  \na b/4.jpg\t9\n./5.jpg x\nc d/6 7.jpg  y")
    )
    assert listed.labels == {
        "cat/1.jpg": "7",
        "cat/2.jpg": "small cat",
        "cat/3.jpg": "8",
        "a b/4.jpg": "9",
        "5.jpg": "x",
        "c d/6 7.jpg": "y",
    }
    assert not listed.dead_letters
    assert listed.source.root == os.path.realpath(tmp_path)
    assert (listed.source.features, listed.source.targets) == ((Feature("label", "class_label"),), ("label",))
    assert listed.images["cat/1.jpg"] == InputRecord("cat/1.jpg", "cat/1.jpg", "7", None)


FIELDS = [
    ("two labels", ["weather", "ground"], [], "a.jpg fog 3", "", {"weather": "fog", "ground": "3"}),
    ("numbers in separate columns", ["x,y:float"], [], "a.jpg 1 2.5", "", {"label": (1.0, 2.5)}),
    ("numbers in one column", ["gaze:float[3]"], [], "a.jpg 1 2 3", "", {"label": (1.0, 2.0, 3.0)}),
    ("number", ["age:float"], [], "a.jpg 31", "", {"label": 31.0}),
    ("names in the remaining fields", ["tags:multi_label"], [], "a.jpg b c a", "", {"label": ("a", "b", "c")}),
    ("names with bars", ["tags:multi_label"], [], "a.jpg b|a", "", {"label": ("a", "b")}),
    ("no names", ["tags:multi_label"], [], "a.jpg", "", {"label": ()}),
    ("names after a label", ["kind", "tags:multi_label"], [], "a.jpg k b c", "", {"kind": "k", "tags": ("b", "c")}),
    ("flags", ["dog,cat:multi_label"], [], "a.jpg 0 1", "", {"label": ("cat",)}),
    (
        "features after the label",
        ["kind"],
        ["age:integer", "note"],
        "a.jpg\tk\t3\tfound at sea",
        "k",
        {"age": 3, "note": "found at sea"},
    ),
    ("mask", ["m:mask"], [], "a.jpg a.png", "", {"mask": FilePart("a.png")}),
    ("no label", ["none"], [], "a.jpg", "", None),
]


@pytest.mark.parametrize(
    "labels, features, line, label, values", [case[1:] for case in FIELDS], ids=[case[0] for case in FIELDS]
)
def test_fields_are_assigned_to_columns_in_order(
    tmp_path: pathlib.Path, labels: list[str], features: list[str], line: str, label: str, values: Any
) -> None:
    listed = Listing(write_list(tmp_path, f"{line}\n"), labels, features)
    assert not listed.dead_letters
    assert (listed.images["a.jpg"].label, listed.images["a.jpg"].values) == (label, values)


BAD_LINES: list[tuple[str, str | bytes, str, str]] = [
    ("path only", "a.jpg", "bad_row", "1 fields"),
    ("empty label", "a.jpg\t", "bad_label", "column 'label' is empty"),
    ("empty path", "\t7", "bad_value", "column 'path' is empty"),
    ("negative label", "a.jpg -1", "bad_label", "'-1'"),
    ("control character", b"a.jpg c\x07t", "bad_label", r"'c\x07t'"),
    ("NUL", b"a.jpg c\0t", "bad_row", "NUL"),
    ("invalid UTF-8", b"a.jpg caf\xe9", "not_utf8", "UTF-8"),
    ("relative path to outside", "../a.jpg 7", "outside", "'../a.jpg'"),
    ("relative path to outside through a folder", "b/../../a.jpg 7", "outside", "'b/../../a.jpg'"),
    ("Windows path to outside", r"..\a.jpg 7", "outside", "a.jpg"),
    ("absolute path", "/etc/passwd 7", "outside", "/etc/passwd"),
    ("URL", "gs://bucket/a.jpg 7", "outside", "gs://bucket/a.jpg"),
    ("link to outside", "out/a.jpg 7", "outside", "out/a.jpg"),
    ("too long line", b"a" * (17 << 20), "bad_row", "16777216"),
]


@pytest.mark.parametrize("line, reason, part", [case[1:] for case in BAD_LINES], ids=[case[0] for case in BAD_LINES])
def test_bad_line_is_a_dead_letter(tmp_path: pathlib.Path, line: str | bytes, reason: str, part: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "images"
    line = line.encode() if isinstance(line, str) else line
    path = write_list(root, b"first.jpg 1\n" + line + b"\nlast.jpg 2\n")
    (root / "out").symlink_to(tmp_path / "elsewhere")
    listed = Listing(path)
    assert listed.labels == {"first.jpg": "1", "last.jpg": "2"}
    (letter,) = listed.dead_letters.values()
    assert (letter.path, letter.stage, letter.reason) == ("list.txt:2", "list", reason)
    assert part in letter.message and letter.message.isprintable()


def test_skips_lines_and_comments(tmp_path: pathlib.Path) -> None:
    text = "202599\npath label\n# one\na.jpg 1\n#b.jpg 2\n../c.jpg 3\n"
    listed = Listing(write_list(tmp_path, text), skip_lines=2, comment="#")
    assert listed.labels == {"a.jpg": "1"}
    assert [*listed.dead_letters] == ["list.txt:6"]
    assert Listing(write_list(tmp_path, text), skip_lines=10**12).images == {}


def test_image_suffix_is_appended_to_names_without_it(tmp_path: pathlib.Path) -> None:
    text = "a 1\nb.jpg 2\nc.v2 3\n../d 4\n"
    listed = Listing(write_list(tmp_path, text), image_suffix=".jpg")
    assert listed.labels == {"a.jpg": "1", "b.jpg": "2", "c.v2.jpg": "3"}
    assert [*listed.dead_letters] == ["list.txt:4"]


def test_lists_named_like_splits_give_splits(tmp_path: pathlib.Path) -> None:
    for name, label in (("train.txt", 1), ("val.txt", 2), ("test.lst", 3)):
        write_list(tmp_path, f"{label}.jpg {label}\n", name)
    listed = Listing(tmp_path)
    assert {path: image.split for path, image in listed.images.items()} == {
        "1.jpg": "train",
        "2.jpg": "validation",
        "3.jpg": "test",
    }
    assert listed.source.parts() == ["test.lst", "train.txt", "val.txt"]
    assert {image.split for image in Listing(tmp_path, config={"split_folders": False}).images.values()} == {None}
    write_list(tmp_path, "4.jpg 4\n", "more.txt")
    with pytest.raises(UserError, match="'more'"):
        Listing(tmp_path)
    assert len(Listing(tmp_path, config={"ignore": ("more*",)}).images) == 3


def test_reads_compressed_lists_with_a_byte_order_mark(tmp_path: pathlib.Path) -> None:
    lists, images = tmp_path / "lists", write_files(tmp_path / "images", {"a.jpg": jpeg()})
    path = write_list(lists, gzip.compress("\ufeffa.jpg Löwe\n".encode()), "list.txt.gz")
    listed = Listing(path, image_root=os.fspath(images), with_sizes=True)
    assert listed.labels == {"a.jpg": "Löwe"}
    assert listed.source.root == os.path.realpath(images)
    assert listed.images["a.jpg"].num_bytes == len(jpeg())
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match="list.txt.gz: cannot be read"):
        Listing(path)


def test_shape_of_arrays_is_the_shape_of_the_first(tmp_path: pathlib.Path) -> None:
    write_list(tmp_path, "bad\na.jpg a.npy\n")
    np.save(tmp_path / "a.npy", np.zeros((4, 5), np.float32))
    with pytest.raises(UserError, match="maps:array"):
        Listing(write_list(tmp_path, "bad\n", "bad.txt"), ["maps:array"])
    (tmp_path / "bad.txt").unlink()
    listed = Listing(tmp_path / "list.txt", ["maps:array"])
    assert listed.source.features == (Feature("label", "float", (4, 5)),)
    assert listed.images["a.jpg"].values == {"label": FilePart("a.npy")}


def test_images_that_match_ignore_are_ignored(tmp_path: pathlib.Path) -> None:
    listed = Listing(write_list(tmp_path, "a.jpg 1\nb/c.jpg 2\n"), config={"ignore": ("b/*",)})
    assert (listed.labels, listed.source.num_ignored) == ({"a.jpg": "1"}, 1)


def test_rejects_a_field_called_path(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--label or --feature path: "):
        Listing(write_list(tmp_path, "a.jpg 1\n"), ["a", "path"])


def test_rejects_an_input_without_a_list(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}: contains no"):
        Listing(write_files(tmp_path, {"a.jpg": jpeg()}))
    with pytest.raises(UserError):
        Listing(tmp_path / "nothing")
