"""The summary that `prepare` prints at the end."""

import pytest

from beam_pipelines.__main__ import main
from made_images import jpeg, write_files


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
def test_the_mapping_is_printed_if_labels_differ_from_the_numbers_in_class_names(tmp_path, capsys, folders, shown):
    write_files(tmp_path / "in", {f"{folder}/{index}.jpg": jpeg(index) for folder in folders for index in range(2)})
    assert main(["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1"]) == 0
    printed = capsys.readouterr().out
    assert (shown in printed) if shown else (" -> " not in printed)
