"""Tests tables and lists whose images are in many folders."""

import os
import pathlib
import unicodedata

import pytest

import tf_input
from beam_pipelines.__main__ import main
from beam_pipelines.errors import UserError
from beam_pipelines.config.values import parse_image_roots
from listed_rows import read_letters
from made_images import png, write_files
from object_stores import connected_to, shared_server, upload_files

IMAGES = [f"HAM_part_{1 + index % 2}/{index}.png" for index in range(8)]


def write_table(root: pathlib.Path, names: list[str], images: list[str] = IMAGES) -> pathlib.Path:
    rows = ["image,label", *(f"{name},{index % 2}" for index, name in enumerate(names))]
    write_files(root, {**{path: png(index) for index, path in enumerate(images)}, "rows.csv": "\n".join(rows).encode()})
    return root / "rows.csv"


def prepare(path: pathlib.Path | str, *options: str, output: pathlib.Path) -> int:
    return main(["prepare", "--input", str(path), "--output", str(output), "--splits=train=1", *options])


def keys_in(output: pathlib.Path) -> list[str]:
    return sorted(str(item["key"]) for item in tf_input.open(output)["train"])


@pytest.mark.slow(1)
@pytest.mark.parametrize("form", ["commas", "repeated", "search"])
def test_images_are_found_in_several_folders(tmp_path: pathlib.Path, form: str) -> None:
    path = write_table(tmp_path, [f"{index}" for index in range(8)])
    first, second = (f"{tmp_path}/HAM_part_{part}" for part in (1, 2))
    options = {
        "commas": [f"--image_root={first},{second}"],
        "repeated": ["--image_root", first, "--image_root", second],
        "search": ["--search_images"],
    }[form]
    assert prepare(path, "--image_suffix=.png", *options, output=tmp_path / "out") == 0
    assert keys_in(tmp_path / "out") == sorted(IMAGES)


@pytest.mark.slow(1)
@pytest.mark.parametrize("source", ["table", "text"])
def test_names_are_searched_in_all_folders(tmp_path: pathlib.Path, source: str) -> None:
    images = ["x/a/1.png", "x/b/2.png", "x/b/c/3.png", "x/Löwe.png", "y/4.png"]
    names = ["1.png", "b/2.png", "b/c/3.png", unicodedata.normalize("NFD", "Löwe.png")]
    path = write_table(tmp_path, names, images)
    write_files(tmp_path, {"list.txt": "\n".join(f"{name} {index % 2}" for index, name in enumerate(names)).encode()})
    path = path if source == "table" else tmp_path / "list.txt"
    options = [f"--source={source}", "--search_images", f"--image_root={tmp_path}/x"]
    assert prepare(path, *options, output=tmp_path / "out") == 0
    assert keys_in(tmp_path / "out") == sorted(["a/1.png", "b/2.png", "b/c/3.png", "Löwe.png"])


@pytest.mark.slow(1)
def test_missing_and_ambiguous_names_are_dead_letters(tmp_path: pathlib.Path) -> None:
    images = ["a/1.png", "b/1.png", "a/2.png", "b/3.png"]
    path = write_table(tmp_path, ["1.png", "a/1.png", "2.png", "4.png", "../2.png", "/etc/passwd", "C:\\2.png"], images)
    limit = "--max_bad_fraction=0.9"
    assert prepare(path, "--search_images", limit, output=tmp_path / "out") == 0
    assert keys_in(tmp_path / "out") == ["a/1.png", "a/2.png"]
    letters = read_letters(tmp_path / "out")
    assert {name: letter["reason"] for name, letter in letters.items()} == {
        "rows.csv:2": "ambiguous",
        "rows.csv:5": "no_image",
        "rows.csv:6": "outside",
        "rows.csv:7": "outside",
        "rows.csv:8": "no_image",
    }
    assert "a/1.png" in letters["rows.csv:2"]["message"] and "b/1.png" in letters["rows.csv:2"]["message"]
    assert str(tmp_path) in letters["rows.csv:5"]["message"]
    roots = f"--image_root={tmp_path}/a,{tmp_path}/b"
    assert prepare(path, roots, limit, output=tmp_path / "out2") == 0
    assert keys_in(tmp_path / "out2") == ["a/2.png"]
    letters = read_letters(tmp_path / "out2")
    assert letters["rows.csv:2"]["reason"] == "ambiguous"
    assert all(f"{tmp_path}/{folder}" in letters["rows.csv:5"]["message"] for folder in ("a", "b"))


@pytest.mark.slow(1)
def test_links_outside_the_folder_are_not_found(tmp_path: pathlib.Path) -> None:
    path = write_table(tmp_path / "in", ["1.png", "2.png"], ["a/1.png"])
    write_files(tmp_path, {"secret.png": png(9)})
    os.symlink(tmp_path / "secret.png", tmp_path / "in/a/2.png")
    assert prepare(path, "--search_images", "--max_bad_fraction=0.5", output=tmp_path / "out") == 0
    assert keys_in(tmp_path / "out") == ["a/1.png"]
    assert [*read_letters(tmp_path / "out")] == ["rows.csv:3"]


@pytest.mark.slow(2)
def test_names_are_searched_in_an_object_store(tmp_path: pathlib.Path) -> None:
    path = write_table(tmp_path / "in", [f"{index}.png" for index in range(8)])
    with connected_to(shared_server("s3")) as server:
        files = {name: (path.parent / name).read_bytes() for name in ("rows.csv", *IMAGES)}
        url = upload_files(server, files)
        assert prepare(f"{url}/rows.csv", "--search_images", *server.flags, output=tmp_path / "out") == 0
    assert keys_in(tmp_path / "out") == sorted(IMAGES)


def test_missing_folder_fails(tmp_path: pathlib.Path, capsys) -> None:
    path = write_table(tmp_path, ["1.png"])
    assert prepare(path, f"--image_root={tmp_path}/HAM_part_1,{tmp_path}/HAM_part_9", output=tmp_path / "out") == 2
    assert "HAM_part_9" in capsys.readouterr().err


def test_image_roots_have_a_common_parent(tmp_path: pathlib.Path) -> None:
    assert parse_image_roots([]) == (None, ())
    assert parse_image_roots(["a"]) == ("a", ())
    assert parse_image_roots([f"{tmp_path}/a, {tmp_path}/b/c"]) == (str(tmp_path), ("a", "b/c"))
    assert parse_image_roots(["gs://x/y/a", "gs://x/y/b"]) == ("gs://x/y", ("a", "b"))
    assert parse_image_roots([f"{tmp_path}/a", f"{tmp_path}/a/b"]) == (f"{tmp_path}/a", ("", "b"))
    (tmp_path / "a,b").mkdir()
    assert parse_image_roots([f"{tmp_path}/a,b"]) == (f"{tmp_path}/a,b", ())
    for texts in (["a,"], ["gs://x/a", "gs://y/a"], ["gs://x/a", "/y"]):
        with pytest.raises(UserError, match="--image_root"):
            parse_image_roots(texts)
