"""Tests inputs from public bug reports whose labels or keys other tools read wrongly."""

import io
import os
import pathlib
import tarfile

import pytest

import tf_input
from beam_pipelines.__main__ import main
from made_images import jpeg, png, write_files


def links_to_a_cache(root: pathlib.Path) -> str:
    """Writes links to files with hashes as names, like the cache of the Hugging Face Hub."""
    for index in range(4):
        write_files(root, {f"blobs/{index:040x}": jpeg(index)})
        link = root / f"snapshots/rev/{'ab'[index % 2]}/{index}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(f"../../../blobs/{index:040x}", link)
    return "snapshots/rev"


def classes_as_floats(root: pathlib.Path) -> str:
    """Writes integer classes as pandas does if a value is missing."""
    rows = "".join(f"{index}.jpg,{index}.0\n" for index in range(12))
    write_files(root, {f"{index}.jpg": jpeg(index) for index in range(12)} | {"rows.csv": f"file_name,label\n{rows}".encode()})
    return "rows.csv"


def numbers_as_class_folders(root: pathlib.Path) -> str:
    write_files(root, {f"{number}/{number}.jpg": jpeg(number % 100) for number in (10, 3, 4006381333931)})
    return ""


def names_with_dots(root: pathlib.Path) -> str:
    with tarfile.open(root / "dots.tar", "w") as file:
        for index, stem in enumerate(("22.05", "22.06")):
            for ending, data in ((".png", png(index)), (".cls", b"1")):
                member = tarfile.TarInfo(stem + ending)
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return "dots.tar"


FOLDERS = {"3/3.jpg": 0, "10/10.jpg": 1, "4006381333931/4006381333931.jpg": 2}
CASES = {  # writer, options, label of each key; a string: words of the error message
    "links": (links_to_a_cache, ["--follow_links"], {f"{'ab'[index % 2]}/{index}.jpg": index % 2 for index in range(4)}),
    "links that are not followed": (links_to_a_cache, [], "link"),
    "floats": (classes_as_floats, [], {f"{index}.jpg": index for index in range(12)}),
    "numbers": (numbers_as_class_folders, [], FOLDERS),
    "dots": (names_with_dots, [], "05.cls"),
}


@pytest.mark.slow(1)
@pytest.mark.parametrize("case", CASES)
def test_reported_input_is_read_or_rejected(tmp_path, capsys, case):
    write, options, expected = CASES[case]
    (tmp_path / "in").mkdir()
    path = f"{tmp_path}/in/{write(tmp_path / 'in')}"
    code = main(["prepare", f"--input={path}", f"--output={tmp_path}/out", "--splits=train=1", "--no_report", *options])
    if isinstance(expected, str):
        assert code == 2 and expected in capsys.readouterr().err
    else:
        assert code == 0
        assert {example["key"]: int(example["label"]) for example in tf_input.open(tmp_path / "out")["train"]} == expected
