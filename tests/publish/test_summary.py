"""Tests the summary that `prepare` prints at the end."""

import json
import re

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from made_images import encode, jpeg, write_files


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "folders, shown",
    [
        (["1", "2", "10"], "1 -> 0, 2 -> 1, 10 -> 2"),
        ([str(number) for number in range(1, 31)], "10 -> 9, 11 -> 10, …, 30 -> 29"),
        (["0", "1", "2"], None),
        (["00", "01", "02"], None),
        (["1", "2", "x"], None),
    ],
)
def test_prints_mapping_if_labels_differ_from_numeric_class_names(tmp_path, capsys, folders, shown):
    write_files(tmp_path / "in", {f"{folder}/{index}.jpg": jpeg(index) for folder in folders for index in range(2)})
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1"]) == 0
    printed = capsys.readouterr().out
    assert (shown in printed) if shown else (" -> " not in printed)


@pytest.mark.slow(2)
@pytest.mark.parametrize("train, test", [("seg_train", "seg_test"), ("part", "a_test")])
def test_next_step_reads_the_training_split(tmp_path, capsys, train, test):
    files = {f"{split}/{label}/{index}.jpg": jpeg(index) for split in (test, train) for label in "ab" for index in range(2)}
    write_files(tmp_path / "in", files)
    options = ["--split_folders=yes", "--no_report"]
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), *options]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "out/README.md").read_text()):
        (line,) = [line for line in text.splitlines() if line.strip().startswith("train = ") and ".batches(" in line]
        assert f"batches({train!r}" in line, line


@pytest.mark.slow
def test_warns_about_16_bit_images_and_padded_jpegs(tmp_path, capsys):
    deep = encode(np.arange(1024, dtype=np.uint16).reshape(32, 32), "PNG")
    padded = jpeg(1)[:-2] + bytes(40) + b"\xff\xd9"
    files = {f"a/{number}.png": deep for number in range(3)} | {f"b/{number}.jpg": padded for number in range(2)} | {"b/c.jpg": jpeg(2)}
    write_files(tmp_path / "in", files)
    prepare = ["prepare", "--input", str(tmp_path / "in"), "--splits=train=1", "--no_report"]
    assert main([*prepare, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    warnings = json.loads((tmp_path / "out/statistics.json").read_text())["warnings"]
    assert [re.search(r": (\d+)[.]", warning)[1] for warning in warnings] == ["3", "2"]
    assert "--keep_depth" in warnings[0] and all(warning in printed.err for warning in warnings)
    assert main([*prepare, "--output", str(tmp_path / "kept"), "--keep_depth"]) == 0
    assert len(json.loads((tmp_path / "kept/statistics.json").read_text())["warnings"]) == 1
