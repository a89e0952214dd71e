"""Tests which split options can be combined, and that the options suggested in error messages work."""

import io
import json
import pathlib
import re
import tarfile

import pytest

from beam_pipelines.__main__ import main
from made_images import jpeg, write_class_folders, write_files

SHARES = "--splits=train=0.5,validation=0.5"
YES, NO, NO_COLUMN, DIVIDE = "--split_folders=yes", "--split_folders=no", "--split_column=", "--divide=train"


def write_inputs(folder: pathlib.Path) -> None:
    write_class_folders(folder / "classes", {"ant": 20, "bee": 20})
    write_class_folders(folder / "splits", {"train/ant": 20, "test/ant": 20})
    write_class_folders(folder / "folds", {"one/ant": 20, "two/ant": 20})
    write_class_folders(folder / "mixed", {"train/ant": 20, "extra/ant": 20})
    write_files(folder / "images", {f"{index:02d}.jpg": jpeg(index) for index in range(40)})
    for name, splits in (("column", ["train", "test"]), ("plain", None)):
        rows = [f"images/{index:02d}.jpg,{'ab'[index % 2]}" + (f",{splits[index % 3 == 0]}" if splits else "") for index in range(40)]
        (folder / f"{name}.csv").write_text("\n".join(["image,label" + (",split" if splits else ""), *rows]) + "\n")
    grouped = ["image,label,split,group", "images/00.jpg,a,train,p1", "images/01.jpg,a,test,p1", "images/02.jpg,a,test,p2"]
    (folder / "grouped.csv").write_text("\n".join(grouped) + "\n")
    (folder / "lists").mkdir()
    for name, half in (("train", range(20)), ("val", range(20, 40))):
        (folder / f"lists/{name}.csv").write_text("image,label\n" + "".join(f"../images/{index:02d}.jpg,a\n" for index in half))


# Maps each case to input, options, words of the error message, and lists of options that the message advises.
CASES = {
    "class folders and shares": ("classes", [SHARES], None, []),
    "class folders and shares, --split_folders=no": ("classes", [SHARES, NO], None, []),
    "class folders and shares, --split_folders=yes": ("classes", [SHARES, YES], "SPLIT/CLASS/IMAGE", []),
    "split folders": ("splits", [], None, []),
    "split folders, --split_folders=yes": ("splits", [YES], None, []),
    "split folders and shares": ("splits", [SHARES], "splits (train, test)", [[], [SHARES, NO], [SHARES, DIVIDE]]),
    "split folders and shares, --split_folders=yes": ("splits", [SHARES, YES], "Omit --splits", [[], [YES], [SHARES, YES, DIVIDE]]),
    "split folders and shares, --split_folders=no": ("splits", [SHARES, NO], None, []),
    "folds": ("folds", [YES], None, []),
    "folds and shares": ("folds", [SHARES, YES], "splits (one, two)", [[YES], [SHARES, YES, "--divide=one"]]),
    "split and other folders": ("mixed", [], "--split_folders=yes", [[YES], [NO]]),
    "other folders and shares": ("mixed", [SHARES], "--split_folders=no", [[SHARES, NO], [YES], [SHARES, YES, DIVIDE]]),
    "table and shares": ("plain.csv", [SHARES], None, []),
    "table and --split_folders=yes": ("plain.csv", [YES], "--split_folders", [[]]),
    "split column": ("column.csv", [], None, []),
    "split column and shares": ("column.csv", [SHARES], "column 'split'", [[], [SHARES, NO_COLUMN], [SHARES, DIVIDE]]),
    "split column and folds": ("column.csv", ["--folds=3"], "--folds", [[], ["--folds=3", NO_COLUMN], ["--folds=3", DIVIDE]]),
    "unused split column and shares": ("column.csv", [SHARES, NO_COLUMN], None, []),
    "split column, --split_folders=no": ("column.csv", [SHARES, NO], "--split_column=", [[], [SHARES, NO_COLUMN]]),
    "misspelled split": ("splits", ["--divide=trian"], "no input names a split 'trian'; did you mean 'train'?", []),
    "--divide without given splits": ("classes", ["--divide=train"], "omit --divide", [[]]),
    "--divide=rest without unsplit inputs": ("splits", ["--divide=rest"], "train, test", [[DIVIDE]]),
    "--divide into an existing split": ("splits", ["--splits=train=0.5,test=0.5", DIVIDE], "'test'", [["--splits=train=0.5,test=0.5", "--divide=train,test"]]),
    "group in two split folders": (
        "splits",
        [r"--group_pattern=([0-9][0-9])\."],
        "groups in several splits: 20, for example '00' in train and test",
        [["--group_pattern=.*"]],
    ),
    "group column with groups in two splits": ("column.csv", ["--group=label"], "groups in several splits: 2, ", [["--group="]]),
    "default group column with a group in two splits": ("grouped.csv", [], "groups in several splits: 1, for example 'p1' in train", [["--group="]]),
    "split folders and strata": ("splits", ["--stratify"], "--divide train", [["--stratify", DIVIDE], ["--stratify", NO]]),
}


def estimate(name: str, options: list[str]) -> int:
    """Runs `prepare --estimate`, which only lists the input, and returns the exit code."""
    return main(["prepare", "--input", name, "--output", "out", "--estimate", *options])


@pytest.mark.slow(0.2)
@pytest.mark.parametrize("case", CASES)
def test_split_options_work_or_give_valid_advice(case, tmp_path, monkeypatch, capsys):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    name, options, message, advised = CASES[case]
    assert estimate(name, options) == (0 if message is None else 2), capsys.readouterr().err
    reported = capsys.readouterr().err
    assert message is None or message in reported and reported.count("\n") == 1 + reported.count("--source="), reported
    for others in advised:
        assert estimate(name, others) == 0, (others, capsys.readouterr().err)


def test_split_folder_may_be_the_input(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert estimate("splits/train", [SHARES]) == 0


def write_rows(folder: pathlib.Path, num_empty: int) -> pathlib.Path:
    write_files(folder / "images", {f"{index:02d}.jpg": jpeg(index) for index in range(40)})
    rows = [f"images/{index:02d}.jpg,a,{'' if index < num_empty else 'train'}\n" for index in range(40)]
    (folder / "rows.csv").write_text("image,label,split\n" + "".join(rows))
    return folder / "rows.csv"


@pytest.mark.parametrize("num_empty", [1, 30, 40])
def test_partly_empty_split_column_gives_a_one_line_error(num_empty, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("beam_pipelines.shards.measure.measure_batch", None)  # no image is read
    table = write_rows(tmp_path, num_empty)
    assert main(["prepare", "--input", str(table), "--output", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert re.search(rf"{num_empty} of 40 rows .* rows.csv:\d+: column 'split'", message), message
    assert "--divide rest" in message and "--split_column=''" in message
    assert "Traceback" not in message and estimate(str(table), ["--divide=rest", "--splits=train=1"]) == 0
    assert estimate(str(table), ["--split_column="]) == 0
    assert estimate(str(table), ["--max_bad_fraction=0.8"]) == (0 if num_empty < 40 else 2)


def test_partly_empty_split_field_gives_an_error(tmp_path, capsys):
    def fields(index: int) -> bytes:
        return json.dumps({"label": "a", "split": "" if index % 2 else "test"}).encode()

    samples = [(f"{index:02d}.{kind}", data) for index in range(40) for kind, data in (("jpg", jpeg(index)), ("json", fields(index)))]
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name, data in samples:
            (member := tarfile.TarInfo(name)).size = len(data)
            tar.addfile(member, io.BytesIO(data))
    options = ["--label=label", "--split_column=split"]
    assert main(["prepare", "--input", str(tmp_path / "in.tar"), "--output", str(tmp_path / "out"), *options]) == 2
    message = capsys.readouterr().err
    assert "in.tar:01: column 'split'" in message and "Traceback" not in message
