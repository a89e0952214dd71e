"""Tests options that set class numbers, and tests that replacing a dataset keeps class numbers or prints a warning."""

import pathlib

import pytest

from beam_pipelines.__main__ import main
from made_images import write_files
from made_sources import PNGS, ROWS, write_csv, write_voc
from tf_input.dataset_format import Feature, Manifest, read_manifest


def prepare(source: pathlib.Path, output: pathlib.Path, *options: str) -> int:
    return main(["prepare", "--input", str(source), "--output", str(output), "--splits=train=1", *options])


def class_tables(output: pathlib.Path) -> dict[str, tuple[str, ...]]:
    return {item.name: item.label_names for item in read_manifest(output).schema if item.label_names}


def write_names(path: pathlib.Path, *names: str) -> pathlib.Path:
    """Writes class names to a text file with a byte order mark at the start, as some Windows editors do."""
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8-sig")
    return path


def write_classes(root: pathlib.Path, *classes: str) -> pathlib.Path:
    return write_files(root, {f"{name}/{i}.png": PNGS[3 * n + i] for n, name in enumerate(classes) for i in range(3)})


HEADS = ("--label=weather", "--label=ground")


@pytest.mark.slow
def test_each_label_has_its_own_class_names(tmp_path, capsys):
    path = tmp_path / "in" / write_csv(tmp_path / "in")
    weather, ground = write_names(tmp_path / "w.txt", "sun", "rain", "fog"), write_names(tmp_path / "g=1.txt", "snow", "sand", "mud")
    named = f"--label_names=weather={weather}"
    assert prepare(path, tmp_path / "out", *HEADS, named, f"--label_names=ground={ground}") == 0
    assert class_tables(tmp_path / "out") == {"weather": ("sun", "rain", "fog"), "ground": ("snow", "sand", "mud")}
    assert prepare(path, tmp_path / "one", *HEADS, named) == 0
    assert class_tables(tmp_path / "one") == {"weather": ("sun", "rain", "fog"), "ground": ("mud", "sand", "snow")}
    assert prepare(path, tmp_path / "single", "--label=weather", "--feature=ground:class", f"--label_names=label={weather}") == 0
    assert class_tables(tmp_path / "single") == {"label": ("sun", "rain", "fog"), "ground": ("mud", "sand", "snow")}
    rejected = {
        (f"--label_names={weather}",): "weather, ground",
        (f"--label_names=wether={weather}",): "weather, ground",
        (named, named): "--label_names",
        (f"--label_names={weather}", f"--label_names={ground}"): "LABEL=FILE",
        (f"--label_names={weather}", named): f"--label_names={weather}",
        ("--label_names=weather=nowhere.txt",): "nowhere.txt: No such file",
        (named, f"--label_names_from={tmp_path / 'out'}"): "weather",
        (f"--label_names_from={tmp_path / 'single'}", f"--label_names=ground={ground}"): "ground",
        (f"--label_names_from={tmp_path / 'in'}",): "--label_names_from=",
        (f"--label_names_from={tmp_path / 'plain'}",): "plain: ",
    }
    write_files(tmp_path, {"plain/manifest.json": Manifest("plain", 0, (Feature("image", "image"),), {}, 0, 0).to_json().encode()})
    capsys.readouterr()
    for options, message in rejected.items():
        assert prepare(path, tmp_path / "bad", *HEADS, *options) == 2, options
        assert message in capsys.readouterr().err, options


def test_class_names_of_objects_can_be_given(tmp_path):
    path = tmp_path / "in" / write_voc(tmp_path / "in")
    for head in ("objects", "objects/label"):
        output = tmp_path / head.replace("/", "-")
        names = write_names(tmp_path / "names.txt", "cow", "bee", "ant")
        command = ["prepare", "--input", str(path).rstrip("/"), "--output", str(output), f"--label_names={head}={names}"]
        assert main([*command, "--splits=train=1"]) == 0
        assert class_tables(output) == {"objects/label": ("cow", "bee", "ant")}


@pytest.mark.slow
def test_replacing_a_dataset_keeps_class_numbers_or_warns(tmp_path, capsys):
    old, more = write_classes(tmp_path / "old", "animal", "thing"), write_classes(tmp_path / "more", "animal", "person", "thing")
    output = tmp_path / "out"
    assert prepare(old, output) == 0 and prepare(old, output, "--overwrite") == 0
    assert "warning" not in capsys.readouterr().err
    assert prepare(more, output, "--overwrite", f"--label_names_from={output}") == 0
    assert class_tables(output) == {"label": ("animal", "thing", "person")}
    assert "warning" not in capsys.readouterr().err
    assert prepare(more, output, "--overwrite") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "label: " in warnings[0] and "'thing' 1 -> 2, 'person' 2 -> 1" in warnings[0]
    assert "--label_names_from OLD" in warnings[0]
    # A class without examples keeps its number
    assert prepare(old, tmp_path / "fewer", f"--label_names_from={output}") == 0
    assert class_tables(tmp_path / "fewer") == {"label": ("animal", "person", "thing")}


@pytest.mark.slow
def test_numbered_lines_of_a_names_file_set_the_order(tmp_path, capsys):
    source = write_classes(tmp_path / "in", "daisy", "rose")
    named = write_names(tmp_path / "labels.txt", "1:rose", "0: daisy", "", "2:tulip leaf")
    assert prepare(source, tmp_path / "out", f"--label_names={named}") == 0
    assert class_tables(tmp_path / "out") == {"label": ("daisy", "rose", "tulip leaf")}
    capsys.readouterr()
    write_names(named, "0:daisy", "0:rose")
    assert prepare(source, tmp_path / "other", f"--label_names={named}") == 2
    assert "labels.txt: no line" in capsys.readouterr().err


@pytest.mark.slow
def test_integer_labels_keep_their_value_with_earlier_class_names(tmp_path, capsys):
    def prepare_lines(name: str, labels: list, *options: str) -> int:
        lines = "".join(f"{row['file_name']} {label}\n" for row, label in zip(ROWS, labels)).encode()
        write_files(tmp_path / name, {**{row["file_name"]: png for row, png in zip(ROWS, PNGS)}, "list.txt": lines})
        return prepare(tmp_path / name / "list.txt", tmp_path / f"out-{name}", *options)

    assert prepare_lines("old", [0, 2]) == 0 and prepare_lines("names", ["cat", "ant"]) == 0
    old, names = f"--label_names_from={tmp_path}/out-old", f"--label_names_from={tmp_path}/out-names"
    assert prepare_lines("more", [1, 11], old) == 0
    assert class_tables(tmp_path / "out-more") == {"label": tuple(map(str, range(12)))}
    assert prepare_lines("fewer", [1], old) == 0 and class_tables(tmp_path / "out-fewer") == {"label": ("0", "1", "2")}
    assert prepare_lines("numbers", [0, 1], names) == 2
    assert "such as 0, " in capsys.readouterr().err
    assert prepare_lines("heads", ["x"], "--label=none", old) == 2
    assert "--label_names_from: " in capsys.readouterr().err


@pytest.mark.slow(1.7)
@pytest.mark.parametrize("corruption", [b"{}", b"no JSON"])
def test_overwrite_replaces_a_corrupt_dataset_and_reports_it(tmp_path, capsys, corruption):
    source, output = write_classes(tmp_path / "in", "animal", "thing"), tmp_path / "out"
    assert prepare(source, output) == 0
    (output / "manifest.json").write_bytes(corruption)
    assert prepare(source, output, "--overwrite") == 0
    assert "warning: Cannot check " in capsys.readouterr().err
    assert class_tables(output) == {"label": ("animal", "thing")}
