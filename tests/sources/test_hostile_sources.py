"""Tests that `prepare` rejects hostile sources without a crash and never opens files outside the input."""

import io
import json
import os
import pathlib
import struct
import sys
import tarfile
import zlib
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from beam_pipelines.runners import local
from made_arrays import idx_file
from made_images import encode, jpeg, png, write_files
from made_records import example, write_records

GOOD = [png(seed) for seed in range(12)]
_HEADER = b"IHDR" + struct.pack(">II", 60_000, 60_000) + b"\x08\0\0\0\0"
BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\r" + _HEADER + struct.pack(">I", zlib.crc32(_HEADER)) + png()[33:]


class Case(NamedTuple):
    """A hostile source and its expected outcome.

    Attributes:
        write: Writes the source to `root/in`, and returns the path of the input below `root/in`.
        options: Options of the command.
        code: Expected exit code.
        message: Words expected in stderr or in the dead letters.
    """

    write: Callable[[pathlib.Path], str]
    options: list[str]
    code: int
    message: str


def good_files(root: pathlib.Path, folder: str = "") -> dict[str, bytes]:
    return {f"{folder}{index:02d}.png": data for index, data in enumerate(GOOD)}


def table(*rows: str, header: str = "file_name,label", masks: bool = False) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", good_files(root))
        os.symlink(root / "secret" / "0.png", root / "in" / "link.png")
        os.symlink(root / "secret", root / "in" / "folder")
        write_files(root / "in", {"mask.png": encode(np.zeros((16, 16), np.uint8), "PNG")})
        value = "mask.png" if masks else "good"
        lines = [header, *(f"{index:02d}.png,{value}" for index in range(12)), *(row.format(root=root) for row in rows)]
        (root / "in/rows.csv").write_text("\n".join(lines))
        return "rows.csv"

    return write


def json_lines(*rows: Any) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", good_files(root))
        lines = [json.dumps({"file_name": f"{index:02d}.png", "label": "good"}) for index in range(12)]
        (root / "in/rows.jsonl").write_text("\n".join([*lines, *(row if isinstance(row, str) else json.dumps(row) for row in rows)]))
        return "rows.jsonl"

    return write


def voc(xml: str) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        for index, data in enumerate(GOOD):
            good = f"<annotation><filename>{index:02d}.png</filename></annotation>"
            write_files(root / "in", {f"images/{index:02d}.png": data, f"annotations/{index:02d}.xml": good.encode()})
        (root / "in/annotations/00.xml").write_text(xml.format(root=root))
        return ""

    return write


def coco(content: Any) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", good_files(root))
        complete = {
            "images": [{"id": index, "file_name": f"{index:02d}.png", "height": 16, "width": 16} for index in range(12)],
            "annotations": [],
            "categories": [{"id": 1, "name": "cat"}],
        }
        if isinstance(content, dict):
            complete = {name: [*values, *content.get(name, [])] for name, values in complete.items()}
        (root / "in/all.json").write_text(content if isinstance(content, str) else json.dumps(complete))
        return "all.json"

    return write


def yolo(files: Mapping[str, str], links: Mapping[str, str] = {}) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", {**good_files(root, "images/"), **{f"labels/{index:02d}.txt": b"0 0.5 0.5 0.5 0.5" for index in range(12)}})
        write_files(root / "in", {name: text.format(root=root).encode() for name, text in files.items()})
        for name, target in links.items():
            os.remove(root / "in" / name)
            os.symlink(root / target, root / "in" / name)
        return ""

    return write


def masks(data: bytes) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        good = encode(np.zeros((16, 16), np.uint8), "PNG")
        for index, image in enumerate(GOOD):
            write_files(root / "in", {f"images/{index}.png": image, f"masks/{index}.png": good if index else data})
        return ""

    return write


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple:
        return open, (self._path, "w")


def pickled_npz(root: pathlib.Path) -> str:
    write_files(root / "in", {})
    np.savez(root / "in/x.npz", x=np.zeros((3, 4, 4), np.uint8), y=np.array([Trap(root / "secret/harm")] * 3, object))
    return "x.npz"


def huge_idx(root: pathlib.Path) -> str:
    images = struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(64)
    write_files(root / "in", {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": idx_file(np.zeros(3, np.uint8))})
    return ""


def wrong_length(root: pathlib.Path) -> str:
    write_files(root / "in", {"x.bin": bytes(17 * 5 + 3)})
    return "x.bin"


def text_list(*lines: str) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", good_files(root))
        good = [f"{index:02d}.png good" for index in range(12)]
        (root / "in/list.txt").write_text("\n".join([*good, *(line.format(root=root) for line in lines)]))
        return "list.txt"

    return write


def records(*more: bytes) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        good = [example({"image/encoded": data, "image/class/label": index % 2}) for index, data in enumerate(GOOD)]
        write_records(root / "in" / "x.tfrecord", [*good, *more])
        return "x.tfrecord"

    return write


def tar(name: str) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", {})
        with tarfile.open(root / "in/x.tar", "w") as archive:
            good = ((f"s{index:02d}.{kind}", content) for index, data in enumerate(GOOD) for kind, content in (("png", data), ("cls", b"1")))
            for path, content in (*good, (name, GOOD[0])):
                member = tarfile.TarInfo(path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return "x.tar"

    return write


def folder_with(**files: bytes) -> Callable[[pathlib.Path], str]:
    def write(root: pathlib.Path) -> str:
        write_files(root / "in", {**good_files(root, "cat/"), **{f"cat/{name}.png": data for name, data in files.items()}})
        return ""

    return write


LOL = '<!DOCTYPE a [<!ENTITY a "{}"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>'
FOREIGN = '<!DOCTYPE a [<!ENTITY x SYSTEM "file://{root}/secret/0.txt">]><annotation><filename>&x;</filename></annotation>'
LENIENT = ["--max_bad_fraction=0.5", "--splits=train=1"]

CASES = {
    "folder: decompression bomb": Case(folder_with(bomb=BOMB), LENIENT, 0, "60000 x 60000 pixels"),
    "folder: web page": Case(folder_with(page=b"<html>"), LENIENT, 0, "HTML or XML"),
    "table: relative path to outside": Case(table("../secret/0.png,x"), LENIENT, 0, "not a path below"),
    "table: absolute path": Case(table("{root}/secret/0.png,x"), LENIENT, 0, "not a path below"),
    "table: link to outside": Case(table("link.png,x"), LENIENT, 0, "--follow_links"),
    "table: linked folder": Case(table("folder/0.png,x"), LENIENT, 0, "--follow_links"),
    "table: URL": Case(table("gs://bucket/x.png,x"), LENIENT, 0, "gs://bucket/x.png"),
    "table: class name with a line break": Case(table('00.png,"a\nb"'), LENIENT, 0, "rows.csv:14"),
    "table: mask outside": Case(
        table("link.txt,../secret/0.png", masks=True), [*LENIENT, "--label=label:mask"], 0, "not a path below"
    ),
    "jsonl: deep nesting": Case(json_lines("[" * 100_000), LENIENT, 0, "rows.jsonl:13"),
    "jsonl: half a surrogate pair": Case(json_lines({"file_name": "\ud800.png", "label": "x"}), LENIENT, 0, "rows.jsonl:13"),
    "text: relative path to outside": Case(text_list("../secret/0.png x"), LENIENT, 0, "not a path below"),
    "voc: entity bomb": Case(voc(LOL.format("ha" * 99).replace("{", "{{").replace("}", "}}") + "<annotation>&c;</annotation>"), LENIENT, 0, "00.xml"),
    "voc: external entity": Case(voc(FOREIGN), LENIENT, 0, "00.xml"),
    "voc: relative path to outside": Case(voc("<annotation><filename>../../secret/0.png</filename></annotation>"), LENIENT, 0, "00"),
    "coco: relative path to outside": Case(
        coco({"images": [{"id": 99, "file_name": "../secret/0.png", "height": 16, "width": 16}]}), LENIENT, 0, "not a path below"
    ),
    "coco: box outside the image": Case(
        coco({"annotations": [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [900, 900, 5, 5]}]}), LENIENT, 0, "box 1 of 1 (cat)"
    ),
    "coco: deep nesting": Case(coco("[" * 100_000), LENIENT, 2, "all.json"),
    "coco: huge run lengths": Case(
        coco(
            {
                "annotations": [
                    {
                        **{"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 5, 5], "iscrowd": 1, "area": 25},
                        "segmentation": {"size": [10**9, 10**9], "counts": [10**18]},
                    }
                ]
            }
        ),
        [*LENIENT, "--masks"],
        0,
        "00.png",
    ),
    "yolo: dataset file leads outside": Case(yolo({"data.yaml": "path: {root}\ntrain: secret\nnc: 1"}), LENIENT, 2, "data.yaml"),
    "yolo: alias bomb": Case(
        yolo({"data.yaml": "train: images\nnc: 1\na: &a [x, x]\nb: &b [*a, *a]\nnames: [*b, *b]"}), LENIENT, 2, "alias"
    ),
    "yolo: Python object": Case(yolo({"data.yaml": "train: images\nnames: !!python/object/apply:os.system [ls]"}), LENIENT, 2, "tag"),
    "yolo: deep nesting": Case(yolo({"data.yaml": "train: images\nnames: " + "[" * 100_000}), LENIENT, 2, "data.yaml"),
    "yolo: link to outside": Case(yolo({}, {"labels/00.txt": "secret/0.txt"}), LENIENT, 0, "--follow_links"),
    "yolo: class names outside": Case(yolo({"classes.txt": "cat"}, {"classes.txt": "secret/0.txt"}), LENIENT, 2, "--follow_links"),
    "yolo: listed path to outside": Case(
        yolo({"data.yaml": "train: train.txt\nnc: 1", "train.txt": "images/01.png\n../secret/0.png\n"}), ["--max_bad_fraction=0.5"], 0, "train.txt:2"
    ),
    "yolo: huge number": Case(yolo({"labels/00.txt": "0 1e999 0.5 0.5 0.5"}), LENIENT, 0, "1e999"),
    "masks: decompression bomb": Case(masks(BOMB), LENIENT, 0, "60000 x 60000 pixels"),
    "masks: JPEG photograph": Case(masks(jpeg()), LENIENT, 0, "JPEG; "),
    "npz: pickle": Case(pickled_npz, LENIENT, 2, "x.npz"),
    "idx: huge shape": Case(huge_idx, LENIENT, 2, "train-images-idx3-ubyte"),
    "fixed_length: wrong record length": Case(
        wrong_length, [*LENIENT, "--source=fixed_length", "--record_layout=label:uint8,image:uint8[4,4]"], 2, "x.bin"
    ),
    "tfrecord: not an example": Case(records(b"\xff" * 40), LENIENT, 0, "x.tfrecord@"),
    "webdataset: member outside": Case(tar("../../secret/evil.png"), LENIENT, 0, "x.tar:../../secret/evil.png"),
}

_opened: list[str] = []
_listens = False


def _listen(event: str, arguments: tuple) -> None:
    if _listens and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_listen)


@pytest.fixture
def opened_paths(monkeypatch):
    """Yields a list to which each path that this process opens is appended. The run starts no worker processes."""
    monkeypatch.setattr(local, "num_cores", lambda: 0)
    monkeypatch.setattr(sys.modules[__name__], "_listens", True)
    _opened.clear()
    yield _opened


@pytest.mark.slow(0.5)
@pytest.mark.parametrize("name", CASES)
def test_hostile_source_neither_crashes_nor_opens_outside_files(tmp_path, capsys, opened_paths, name):
    case = CASES[name]
    write_files(tmp_path / "secret", {"0.png": png(99), "0.txt": b"secret"})
    path = f"{tmp_path}/in/{case.write(tmp_path)}".rstrip("/")
    before = sorted(tmp_path.rglob("*"))
    opened_paths.clear()
    code = main(["prepare", "--input", path, "--output", str(tmp_path / "out"), "--name=made", *case.options])
    secret_paths = [name for name in opened_paths if "/secret" in name]
    printed = capsys.readouterr()
    assert code == case.code, printed.err
    assert not secret_paths
    assert "Traceback" not in printed.err and "secret\n" not in printed.err
    assert sorted(path for path in tmp_path.rglob("*") if tmp_path / "out" not in (path, *path.parents)) == before
    if code:
        lines = [line for line in printed.err.splitlines() if not line.startswith("recordmill: --source=")]
        assert lines[0].startswith("recordmill: ") and case.message in printed.err, printed.err
        assert not (tmp_path / "out").exists()
    else:
        letters = (tmp_path / "out" / "dead_letters.jsonl").read_text()
        assert case.message in letters, letters
        assert letters.count("\n") == 1
