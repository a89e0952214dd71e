"""Tests the content, the reproducibility and the size of the HTML report for many kinds of datasets."""

import ast
import html
import html.parser
import json
import pathlib
import re
import shutil

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from beam_pipelines.__main__ import main
from beam_pipelines.elements.shuffle_keys import shuffle_orders
from beam_pipelines.errors import StorageError
from beam_pipelines.report import write_report
from beam_pipelines.report.find_keys import find_keys
from beam_pipelines.report.sample import read_examples
from made_images import encode, jpeg, noise, png, write_class_folders, write_files
from signed import update_checksums
from tf_input.dataset_format import (
    DEAD_LETTER_THUMBNAILS,
    DEAD_LETTERS,
    LEAKS,
    MANIFEST,
    REPORT,
    STATISTICS,
    NEAR_DUPLICATES,
    Manifest,
    ShardInfo,
    encode_index,
    read_manifest,
)
from tf_input.serialized_example import BadExampleError

HOSTILE = [
    *("<script>alert(1)</script>", '"><img src=http://x.invalid/ onerror=alert(1)>', "a&amp;b", "{{ 7*7 }}{% x"),
    *("../x", "שלום \u202eevil", "x" * 256, "🐜🏳️‍🌈"),
]


class Page(html.parser.HTMLParser):
    """Parses the HTML of a report and checks that all elements are closed.
    Args:
        path: Path of the report.
    Attributes:
        sections: Text by section.
        elements: Tag and attributes of each element.
        rows: Rows of tables by section.
        figures: Caption of each figure by section, and whether the figure has an image.
    """

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.figures: dict[str, list[tuple[str, bool]]] = {}
        self._open: list[str] = []
        self._section = ""
        self.feed(path.read_text(encoding="utf-8"))
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"]
        if tag == "tr":
            self.rows.setdefault(self._section, []).append([])
        if tag in ("td", "th"):
            self.rows[self._section][-1].append("")
        if tag == "figure":
            self.figures.setdefault(self._section, []).append(("", False))
        if tag == "img" and "figure" in self._open:
            self.figures[self._section][-1] = ("", True)
        if tag not in ("meta", "img", "input"):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] in ("style", "script"):
            return
        self.sections[self._section] = self.sections.get(self._section, "") + data
        if "figcaption" in self._open:
            caption, has_image = self.figures[self._section][-1]
            self.figures[self._section][-1] = (caption + data, has_image)
        if {"td", "th"} & set(self._open):
            self.rows[self._section][-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        """Returns the attributes of all HTML elements with the given tag."""
        return [attributes for name, attributes in self.elements if name == tag]


def prepare(folder: pathlib.Path, source: str, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", str(folder / source), "--output", str(folder / "out"), "--quiet", *options]) == 0
    return folder / "out"


def write_table(folder: pathlib.Path, num: int, row, files=lambda index: {}) -> str:
    """Writes a table of `num` images, with additional fields from `row` and additional files from `files`."""
    for index in range(num):
        write_files(folder, {f"{index}.jpg": jpeg(index, 24, 20 + index % 9), **files(index)})
    (folder / "rows.jsonl").write_text("".join(json.dumps({"file_name": f"{index}.jpg", **row(index)}) + "\n" for index in range(num)))
    return "rows.jsonl"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> pathlib.Path:
    """Returns a dataset with three classes, three splits and two dead letters."""
    folder = tmp_path_factory.mktemp("classes")
    write_class_folders(folder / "in", {"ant": 90, "bee": 40, "cow": 8})
    write_files(folder / "in", {"bee/none.jpg": b"<b>no image</b>", "ant/cut.jpg": jpeg(3)[:-50]})
    return prepare(folder, "in", "--splits=train=0.7,validation=0.2,test=0.1", "--max_bad_fraction=0.1", "--name=made", "--seed=7")


def test_report_describes_the_dataset(dataset):
    page = Page(dataset / REPORT)
    statistics = json.loads((dataset / STATISTICS).read_text())["splits"]
    header, *rows = page.rows["classes-1"]
    assert header[:4] == ["class", "train", "validation", "test"] and [row[0] for row in rows] == ["ant", "bee", "cow"]
    for name, *counts, _ in rows:
        assert list(map(int, counts)) == [statistics[split]["label_counts"][name] for split in ("train", "validation", "test")]
    summary = " ".join(page.sections["summary"].split())
    assert "138 examples" in summary and "3 splits" in summary and "16 × 16 pixels" in summary
    assert "2 of 140 inputs (1.43%)" in summary and "bad_image (2)" in summary
    quality = page.rows["shuffle"][1]
    shuffle = statistics["train"]["shuffle"]["label"]
    assert quality[:4] == ["train", "label", *(f"{shuffle[key]:.2f}" for key in ("mean_run_length", "expected_mean_run_length"))]
    ((reason, stage, num, examples),) = page.rows["dead-letters"][1:]
    assert (reason, stage, num) == ("bad_image", "check", "2") and "bee/none.jpg" in examples and "ant/cut.jpg" in examples
    (thumbnail,) = [image for image in page.all("img") if image["alt"].startswith("ant/cut.jpg: JPEG: ")]
    (letter,) = map(json.loads, (dataset / DEAD_LETTER_THUMBNAILS).read_text().splitlines())
    assert letter["path"] == "ant/cut.jpg" and thumbnail["src"] == f"data:image/jpeg;base64,{letter['thumbnail']}"
    assert "--splits" in page.sections["made"] and "7/10" in page.sections["made"] and "made-train.tfrecord-*" in page.sections["made"]
    assert not any("z = " in row[-1] for row in page.rows["shuffle"][1:])
    labels = [item["aria-label"] for item in page.all("svg") if re.match("Bytes .* in ", item.get("aria-label", ""))]
    numbers = {re.search(r" in (\w+):", text)[1]: sum(map(int, re.findall(r": (\d+);", text))) for text in labels}
    assert numbers == {split: facts["num_examples"] for split, facts in statistics.items()}
    assert [row[0] for row in page.rows["splits"][1:]] == ["train", "validation", "test"]
    assert {row[0] for row in page.rows["features"][1:]} == {"height", "image", "key", "label", "width"}
    pictures = [image for image in page.all("img") if image["alt"].startswith("cow: cow/")]
    assert len(pictures) == 8 and all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))


def test_order_strips_show_sorted_source_and_shuffled_shards(dataset):
    labels = [attributes["aria-label"] for attributes in Page(dataset / REPORT).all("svg") if attributes.get("class") == "strip"]
    before, after = (int(re.search(r"(\d+) runs", label)[1]) for label in labels)
    assert before == 3 and after > 20


def test_equal_datasets_have_equal_reports(dataset, tmp_path, capfd):
    """The report does not depend on the path, the runner or the time of a run."""
    shutil.copytree(dataset.parent / "in", tmp_path / "in")
    options = ["--splits=train=0.7,validation=0.2,test=0.1", "--max_bad_fraction=0.1", "--name=made", "--seed=7"]
    again = prepare(tmp_path, "in", *options, "--runner=FnApiRunner")
    written = (dataset / REPORT).read_bytes()
    assert (again / REPORT).read_bytes() == written
    (again / REPORT).unlink()
    assert main(["report", str(again)]) == 0 and (again / REPORT).read_bytes() == written
    assert capfd.readouterr().out.split()[-1] == str(again / REPORT)
    page = tmp_path / "page.html"
    for before in (None, b"", written.replace(b"ant", b"ANT")):  # an existing page is replaced
        page.write_bytes(before) if before is not None else None
        assert main(["report", str(dataset), "--page", str(page)]) == 0 and page.read_bytes() == written
    for name, other in (("manifest", (dataset / MANIFEST).read_bytes()), ("notes.html", b"<html>mine")):
        (tmp_path / name).write_bytes(other)
        capfd.readouterr()
        assert main(["report", str(dataset), "--page", str(tmp_path / name)]) == 2 and (tmp_path / name).read_bytes() == other
        assert f"--page={tmp_path / name}" in capfd.readouterr().err


@pytest.mark.parametrize("command", [["report", "--page"], ["verify", "--report"], ["quality", "--plot"]], ids=lambda command: command[0])
def test_missing_folder_of_an_output_file_is_rejected(dataset, tmp_path, capfd, command):
    name, option = command
    path = tmp_path / "missing" / "page.png"
    assert main([name, str(dataset), option, str(path)]) == 2 and not path.parent.exists()
    assert f"{option}={path}" in capfd.readouterr().err


def test_bad_shuffle_is_reported(dataset, tmp_path):
    copy = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy"))
    change_file(copy, STATISTICS, lambda text: re.sub(r'"mean_run_length": [0-9.]+', '"mean_run_length": 9.5', text, count=1))
    assert main(["report", str(copy)]) == 0
    page = Page(copy / REPORT)
    assert "z = " in page.rows["shuffle"][1][-1] and "9.50 examples" in page.sections["summary"]


def test_invalid_thumbnail_is_not_shown(dataset, tmp_path):
    copy = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy"))
    change_file(copy, DEAD_LETTER_THUMBNAILS, lambda text: re.sub(r'"thumbnail": ".*?"', '"thumbnail": "bm90aGluZw=="', text))
    assert main(["report", str(copy)]) == 0
    page = Page(copy / REPORT)
    assert "ant/cut.jpg" in page.sections["dead-letters"] and not [item for item in page.all("img") if item["alt"].startswith("ant/cut.jpg")]


def test_undecodable_image_has_no_brightness(tmp_path):
    write_files(tmp_path / "in", {**{f"ant/{index}.jpg": jpeg(index) for index in range(3)}, "ant/cut.jpg": jpeg(3)[:-60]})
    page = Page(prepare(tmp_path, "in", "--check=header", "--splits=train=1") / REPORT)
    shown = {caption.rpartition(": ")[2] for caption, _ in page.figures["oddest"] if caption.startswith("brightness")}
    assert shown == {"ant/0.jpg", "ant/1.jpg", "ant/2.jpg"} and "ant/cut.jpg" in page.sections["oddest"]


def test_split_without_examples_has_no_shuffle_quality(dataset, tmp_path):
    copy = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy"))
    statistics = json.loads((copy / STATISTICS).read_text())
    statistics["splits"]["test"]["shuffle"]["label"] = None
    (copy / STATISTICS).write_text(json.dumps(statistics))
    update_checksums(copy)
    assert main(["report", str(copy)]) == 0
    assert [row[0] for row in Page(copy / REPORT).rows["shuffle"][1:]] == ["train", "validation"]


def test_code_examples_are_valid_python(dataset):
    text = html.unescape((dataset / REPORT).read_text())
    *blocks, check = re.findall(r"<pre[^>]*><code>(.*?)</code>", text, re.DOTALL)
    assert len(blocks) == 3 and check.strip() == "recordmill verify ."
    for block in blocks:
        imported = {name.name for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import) for name in node.names}
        assert imported & {"tf_input", "tensorflow_datasets", "tensorflow"}


def test_changed_report_is_only_written_to_another_file(dataset, tmp_path, capfd):
    copy, page = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy")), tmp_path / "page.html"
    (copy / DEAD_LETTERS).write_text("")
    assert main(["report", str(copy)]) == 2 and "--page=FILE" in capfd.readouterr().err
    assert (copy / REPORT).read_bytes() == (dataset / REPORT).read_bytes()
    assert main(["report", str(copy), "--page", str(page)]) == 0 and page.exists()


def test_no_report_option(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 12})
    assert not (prepare(tmp_path, "in", "--no_report", "--splits=train=1") / REPORT).exists()


def test_failed_report_does_not_fail_the_run(tmp_path, capfd, monkeypatch):
    write_class_folders(tmp_path / "in", {"ant": 12})
    monkeypatch.setattr(write_report, "render_page", raise_error(ZeroDivisionError()))
    out = prepare(tmp_path, "in", "--splits=train=1")
    reported = capfd.readouterr().err
    assert "warning: report.html " in reported and "ZeroDivisionError" in reported and f"`recordmill report {out}`" in reported
    assert not (out / REPORT).exists() and main(["verify", str(out)]) == 0
    monkeypatch.undo()
    assert main(["report", str(out)]) == 0 and (out / REPORT).exists()


def test_run_with_unreadable_shards_can_resume_without_report(tmp_path, capfd, monkeypatch):
    """Only the report reads the shards again."""
    write_class_folders(tmp_path / "in", {"ant": 12})
    monkeypatch.setattr(write_report, "read_sample", raise_error(BadExampleError("none")))
    typed = ["prepare", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--splits=train=1"]
    assert main(typed) == 1 and "report.html" in capfd.readouterr().err
    assert main([*typed, "--resume", "--no_report"]) == 0 and not (tmp_path / "out" / REPORT).exists()
    assert "report" not in capfd.readouterr().err


def raise_error(error: Exception):
    def function(*unused: object) -> None:
        raise error

    return function


def test_hostile_names_are_escaped(tmp_path):
    source = write_table(tmp_path, 64, lambda index: {"label": HOSTILE[index % 8]})
    page = Page(prepare(tmp_path, source, "--splits=train=1") / REPORT)
    assert {row[0] for row in page.rows["classes-1"][1:]} == {name.replace("\u202e", "\\u202e") for name in HOSTILE}
    check_is_safe(page)


def check_is_safe(page: Page) -> None:
    """Checks that no script, style or URL in the page originates from the dataset."""
    assert len(page.all("script")) == 1 and not page.all("link") and not page.all("iframe")
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcset")], (tag, attributes)
        assert attributes.get("src", "data:").startswith("data:image/") or "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "unsafe" not in policy


def test_report_shows_boxes_masks_and_several_labels(tmp_path):
    source = write_table(
        tmp_path,
        60,
        lambda index: {
            "mask": f"m/{index}.png",
            "objects": {"bbox": [[5, 4, 10, 8], [0, 0, 3, 3]][: index % 3], "categories": ["red", "<b>"][: index % 3]},
            "weather": ("sun", "rain")[index % 2],
            "tags": ["a", "b", "c"][: index % 4],
        },
        lambda index: {f"m/{index}.png": png_mask(24, 20 + index % 9)},
    )
    labels = ["--label=objects", "--label=mask:mask", "--label=weather", "--label=tags:multi_label"]
    page = Page(prepare(tmp_path, source, *labels, "--folds=2") / REPORT)
    assert {f"classes-{location}" for location in (1, 2, 3)} <= set(page.sections) and "samples" not in page.sections
    boxes = [item for item in page.all("svg") if item.get("class") == "boxes"]
    masks = [entry for entry in page.all("img") if entry.get("class") == "mask"]
    assert boxes and masks and all(mask["src"].startswith("data:image/png") for mask in masks)
    assert {element["id"] for element in page.all("input") if element["type"] == "checkbox"} == {"show-boxes", "show-masks"}
    out = prepare(tmp_path / "plain", write_table(tmp_path / "plain", 20, lambda index: {}), "--label=none", "--splits=train=1")
    page = Page(out / REPORT)
    assert "samples" in page.sections and not any(name.startswith("classes") for name in page.sections)


def test_clipped_and_dropped_boxes_are_reported(tmp_path, capsys):
    boxes = [[5, 4, 100, 8], [50, 50, 3, 3]]
    source = write_table(tmp_path, 12, lambda index: {"objects": {"bbox": boxes[: 1 + index % 2], "categories": ["a", "b"][: 1 + index % 2]}})
    command = ["prepare", "--input", str(tmp_path / source), "--output", str(tmp_path / "out"), "--label=objects", "--splits=train=1"]
    assert main([*command, "--bad_boxes=clip"]) == 0
    assert "boxes:        12 clipped to their image, 6 " in capsys.readouterr().out
    summary = Page(tmp_path / "out" / REPORT).sections["summary"]
    assert "12 boxes" in summary and "6 boxes" in summary


def png_mask(height: int, width: int) -> bytes:
    mask = np.zeros((height, width), np.uint8)
    mask[4:12, 5:15] = 1
    return encode(mask, "PNG")


@pytest.mark.slow
def test_report_of_table_tensors_and_image_pairs(tmp_path):
    (tmp_path / "rows").mkdir()
    rows = "".join(f"k{index},{index / 7},c{index % 5}<b>,{'yn'[index % 2]}\n" for index in range(100))
    (tmp_path / "rows/t.csv").write_text("key,age,city,label\n" + rows)
    page = Page(prepare(tmp_path / "rows", "t.csv", "--feature=age:float", "--feature=city") / REPORT)
    assert not page.all("img") and "oddest" not in page.sections and "c1<b>" in page.sections["features"]
    (tmp_path / "arrays").mkdir()
    pixels = np.random.default_rng(0).normal(size=(30, 20, 24, 3)).astype(np.float32)
    pixels[3] = np.nan
    np.savez(tmp_path / "arrays/train.npz", x=pixels, y=np.arange(30) % 3)
    page = Page(prepare(tmp_path / "arrays", "train.npz") / REPORT)
    assert len(page.all("img")) > 20 and "5,760 bytes" in page.sections["features"]
    pairs = tmp_path / "pairs"
    source = write_table(pairs, 20, lambda index: {"right": f"r/{index}.png"}, lambda index: {f"r/{index}.png": png(index, 30, 30)})
    page = Page(prepare(pairs, source, "--label=none", "--feature=right:image", "--splits=train=1") / REPORT)
    assert len([image for image in page.all("img")]) >= 40


@pytest.mark.slow(1)
def test_report_size_is_bounded(tmp_path):
    """One dataset has many classes with long names, and the other dataset has images that compress poorly."""
    names = [f"{index:04d}<&\"'{'é<&>' * 60}" for index in range(1_500)]
    rows = "".join(f"{json.dumps({'key': f'k{index}', 'city': 'c', 'label': name})}\n" for index, name in enumerate(names))
    write_files(tmp_path, {"rows.jsonl": rows.encode()})
    page = prepare(tmp_path, "rows.jsonl", "--image=none", "--feature=city", "--splits=train=1") / REPORT
    assert page.stat().st_size < 5_000_000 and "500 more classes" in page.read_text()
    write_files(tmp_path / "noise", {f"in/{index % 3}/{index}.png": png(index, 256, 256) for index in range(24)})
    page = prepare(tmp_path / "noise", "in", "--splits=train=1") / REPORT
    assert len(Page(page).all("img")) >= 24 and page.stat().st_size < 1_500_000


def change_file(path: pathlib.Path, name: str, change) -> None:
    """Changes a file of a dataset. If the file is not the manifest, updates its checksum in the manifest."""
    (path / name).write_text(change((path / name).read_text()))
    if name != MANIFEST:
        update_checksums(path)


def replacing(name: str, old: str, new: str):
    return lambda path: change_file(path, name, lambda text: text.replace(old, new))


def test_corrupt_dataset_is_a_one_line_error(dataset, tmp_path, capfd):
    other = "made-train.tfrecord"
    cases = {
        "no manifest": (lambda path: (path / MANIFEST).unlink(), "is not a dataset"),
        "no statistics": (lambda path: (path / STATISTICS).unlink(), STATISTICS),
        "statistics of another size": (lambda path: (path / STATISTICS).write_text('{"splits": 3}'), f"{STATISTICS} has 13 bytes"),
        "statistics of another type": (lambda path: change_file(path, STATISTICS, lambda text: '{"splits": 3}'), "recordmill verify"),
        "invalid JSON": (lambda path: (path / "run.json").write_text("{"), "run.json"),
        "a JSON list": (lambda path: (path / "run.json").write_text("[]"), "run.json"),
        "dead letters": (lambda path: (path / DEAD_LETTERS).write_text("3\n"), "line 1"),
        "thumbnails": (lambda path: (path / DEAD_LETTER_THUMBNAILS).write_text('{"stage": "x"}\n'), "stage, reason, path"),
        "an invalid thumbnail": (replacing(DEAD_LETTER_THUMBNAILS, '"thumbnail": "', '"thumbnail": "?'), "base64"),
        "leaks": (lambda path: (path / LEAKS).write_text('{"detected": 3}'), NEAR_DUPLICATES),
        "newer format": (lambda path: change_file(path, MANIFEST, lambda text: text.replace('version": 4', 'version": 5')), "version 5"),
        "another shard": (replacing(MANIFEST, other, "made-none.tfrecord"), "'made-none"),
        "another catalog": (replacing(MANIFEST, "g/made-train", "g/made-none"), "'catalog/made-none"),
        "a shard in another directory": (lambda path: change_file(path, MANIFEST, lambda text: text.replace(other, f"../../{other}")), f"../../{other}"),
        "a corrupt catalog": (lambda path: next((path / "catalog").iterdir()).write_bytes(b"PAR1"), "catalog/made-"),
        "empty indexes": (lambda path: [item.write_bytes(b"") for item in (path / "index").iterdir()], " 0 bytes"),
        "indexes without rows": (lambda path: [element.write_bytes(encode_index([], (0, 0))) for element in (path / "index").iterdir()], " 0 rows"),
        "corrupt shards": (lambda path: [entry.write_bytes(bytes(10_000)) for entry in path.glob("*.tfrecord-*")], "recordmill verify"),
    }
    for case, (change, expected) in cases.items():
        copy = pathlib.Path(shutil.copytree(dataset, tmp_path / case))
        (copy / REPORT).unlink()
        change(copy)
        assert main(["report", str(copy)]) == 2, case
        reported = capfd.readouterr().err.strip()
        assert expected in reported and "\n" not in reported and not (copy / REPORT).exists(), case


def test_hostile_manifest_changes_neither_page_nor_other_files(dataset, tmp_path, capfd):
    bad = "</script></title><img src=http://x.invalid/ onerror=alert(1)>" + "x" * 300
    secret = tmp_path / "secret"
    secret.write_text("do not touch")
    changes = {
        "name": lambda manifest: manifest.update(name=bad),
        "about": lambda manifest: manifest.update(about={bad: bad, "license": bad}),
        "a description": lambda manifest: manifest["schema"][0].update(description=bad),
        "a feature": lambda manifest: manifest["schema"].append({"name": bad, "kind": "text", "shape": [], "description": bad}),
        "a split": lambda manifest: manifest["splits"].update({bad: manifest["splits"].pop("test")}),
        "classes": lambda manifest: manifest.update(label_names=[bad, "bee", "cow"]),
        **{
            f"{name} elsewhere": lambda manifest, name=name: manifest["splits"]["test"]["shards"][0].update({name: str(secret)})
            for name in ("name", "index", "catalog")
        },
        "sizes": lambda manifest: manifest["splits"]["test"]["shards"][0].update(num_bytes=2**62, num_examples=2**62, catalog_bytes=2**62),
        "inputs": lambda manifest: manifest.update(num_inputs=-(2**70), seed=2**70),
    }
    for case, change in changes.items():
        copy = pathlib.Path(shutil.copytree(dataset, tmp_path / case))
        (copy / REPORT).unlink()
        manifest = json.loads((copy / MANIFEST).read_text())
        change(manifest)
        (copy / MANIFEST).write_text(json.dumps(manifest))
        code, reported = main(["report", str(copy)]), capfd.readouterr().err.strip()
        assert code in (0, 2) and (code == 0) == (copy / REPORT).exists() and "\n" not in reported, (case, reported)
        if code == 0:
            check_is_safe(Page(copy / REPORT))
    assert secret.read_text() == "do not touch"


def test_missing_file_is_a_storage_error(dataset, tmp_path):
    copy = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy", ignore=shutil.ignore_patterns(REPORT, STATISTICS)))
    with pytest.raises(StorageError, match="^report.html .*: No such file or directory$"):
        write_report.write_report(str(copy), read_manifest(copy))
    assert not (copy / REPORT).exists()


def test_missing_file_is_named_in_one_line(dataset, tmp_path, capfd):
    copy = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy", ignore=shutil.ignore_patterns(STATISTICS)))
    for command, advice in (("report", "`recordmill verify`"), ("inspect", "")):
        assert main([command, str(copy)]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"recordmill: {copy / STATISTICS}: No such file or directory") and advice in line


def test_dataset_without_catalogs_has_a_report(dataset, tmp_path):
    """Datasets that are written by `recordmill transform` have no catalogs."""
    copy = pathlib.Path(shutil.copytree(dataset, tmp_path / "copy"))
    change_file(copy, MANIFEST, lambda text: re.sub(r'"catalog": ".*"', '"catalog": ""', text))
    update_checksums(copy)
    assert main(["report", str(copy)]) == 0
    page = Page(copy / REPORT)
    assert {"classes-1", "shuffle", "splits"} <= set(page.sections) and "oddest" not in page.sections
    assert len(page.all("img")) == 13


def test_darkest_and_brightest_images_are_found(tmp_path):
    """The report decodes the smallest files, which include images of a single color."""
    files = {f"in/a/{index:03d}.jpg": jpeg(index, 24, 24) for index in range(300)}
    plain = {name: encode(np.full((24, 24, 3), value, np.uint8), "JPEG") for name, value in (("black", 0), ("white", 255))}
    write_files(tmp_path, files | {f"in/a/{name}.jpg": data for name, data in plain.items()})
    page = Page(prepare(tmp_path, "in", "--splits=train=0.8,test=0.2") / REPORT)
    reported = [caption for caption, _ in page.figures["oddest"]]
    assert "brightness 0%: a/black.jpg" in reported and "brightness 100%: a/white.jpg" in reported
    assert re.search(r"\b\d\d decoded images", page.sections["oddest"])


@pytest.fixture(scope="module")
def near_duplicates(tmp_path_factory) -> pathlib.Path:
    """Returns class folders with one pair of near-duplicates in the same class and one pair in different classes."""
    folder = tmp_path_factory.mktemp("near_duplicates")
    files = {f"in/{'ab'[index % 2]}/{index}.jpg": distinct_image(index) for index in range(24)}
    files |= {"in/a/0 again.jpg": files["in/a/0.jpg"], "in/b/<i>.jpg": files["in/a/2.jpg"]}
    write_files(folder, files)
    return folder / "in"


def distinct_image(seed: int) -> bytes:
    """Returns an image that has no near-duplicates."""
    return encode(np.kron(noise(seed, 6, 6), np.ones((8, 8, 1), np.uint8)), "JPEG", quality=95)


@pytest.mark.slow(0.9)
@pytest.mark.parametrize("duplicates", ["group", "drop"])
def test_near_duplicates_are_shown_side_by_side(near_duplicates, tmp_path, duplicates):
    out = tmp_path / "out"
    assert main(["prepare", "--input", str(near_duplicates), "--output", str(out), f"--duplicates={duplicates}", "--splits=train=0.5,test=0.5", "--quiet"]) == 0
    page = Page(out / REPORT)
    kept = duplicates == "group"
    spanning = [("a: a/2.jpg", True), ("b: b/<i>.jpg" + " (removed)" * (not kept), kept)]
    assert page.figures["leaks"] == [*spanning, ("a: a/0 again.jpg", True), ("a: a/0.jpg" + " (removed)" * (not kept), kept), *spanning]
    assert "No leaks: " in page.sections["summary"]
    assert ("images removed" in page.sections["leaks"]) == (duplicates == "drop")
    check_is_safe(page)


def test_leaks_are_shown(near_duplicates, tmp_path):
    """With this seed, the near-duplicate images are in different splits."""
    out = tmp_path / "out"
    options = ["--duplicates=keep", "--splits=train=0.5,test=0.5", "--seed=1", "--quiet"]
    assert main(["prepare", "--input", str(near_duplicates), "--output", str(out), *options]) == 0
    leaks = json.loads((out / LEAKS).read_text())["remaining"]["across_splits"][0]
    page = Page(out / REPORT)
    reported = [(f"{split}: {key}", True) for pair in leaks["first"] for split, key in zip(leaks["parts"], pair)]
    assert page.figures["leaks"][: len(reported)] == reported and "Leaks: " in page.sections["summary"]
    assert re.search(r"share of a\s*train \d+\.\d%, test \d+\.\d%", page.sections["leaks"])


def test_missing_near_duplicates_and_cut_pairs_are_reported(near_duplicates, tmp_path):
    out = tmp_path / "out"
    assert main(["prepare", "--input", str(near_duplicates), "--output", str(out), "--duplicates=keep", "--splits=train=1", "--quiet"]) == 0
    near_duplicates = out / NEAR_DUPLICATES
    near_duplicates.write_text(near_duplicates.read_text().replace("a/0 again.jpg", "a/gone.jpg"))
    change_file(out, LEAKS, lambda text: text.replace('"num_cut": 0', '"num_cut": 2').replace('"num_pairs_cut": 0', '"num_pairs_cut": 7'))
    assert main(["report", str(out)]) == 0
    page = Page(out / REPORT)
    assert ("a: a/gone.jpg (not found)", False) in page.figures["leaks"] and "2: 7 pairs" in page.sections["leaks"]


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(seed=st.integers(0, 9), sizes=st.lists(st.sampled_from([0, 0, 1, 2, 5, 60]), min_size=1, max_size=40))
def test_keys_are_found_in_shards_of_any_size(tmp_path_factory, seed, sizes):
    """The generated lists of sizes include many empty shards and a few large shards."""
    folder = tmp_path_factory.mktemp("catalogs")
    keys = [f"k{index}" for index in range(sum(sizes))]
    ordered = [keys[location] for location in np.argsort(shuffle_orders(seed, [key.encode() for key in keys]))] if keys else []
    infos, expected = [], {}
    for shard, size in enumerate(sizes):
        shard_keys, ordered = ordered[:size], ordered[size:]
        pq.write_table(pa.table({"key": pa.array(shard_keys, pa.string())}), folder / f"{shard}.parquet")
        infos.append(ShardInfo(f"s{shard}", size, 0, 0, f"{shard}.idx", 0, 0, f"{shard}.parquet"))
        expected |= {key: (1, shard, record) for record, key in enumerate(shard_keys)}
    manifest = Manifest("made", seed, (), {"none": (), "train": tuple(infos)}, len(keys), 0, targets=())
    assert find_keys(str(folder), manifest, [*keys, "absent"]) == expected


def test_keys_are_found_in_many_shards(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 100})
    out = prepare(tmp_path, "in", "--splits=train=0.7,test=0.3", "--num_shards=train=30,test=4", "--no_report")
    manifest = read_manifest(out)
    keys = [f"ant/{index:03d}.jpg" for index in range(101)]
    locations = find_keys(str(out), manifest, keys)
    actual = {slot: example.values("key")[0].decode() for slot, example in read_examples(str(out), manifest, locations.values())}
    assert {key: actual[location] for key, location in locations.items()} == {key: key for key in keys[:100]}
