"""What the page of a data set says, from data sets of every kind; that it follows from them alone, and stays small."""

import html.parser
import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from beam_pipelines.__main__ import main
from made_images import encode, jpeg, png, write_class_folders, write_files
from tf_input.dataset_format import DEAD_LETTERS, MANIFEST, REPORT, STATISTICS

HOSTILE = [
    *("<script>alert(1)</script>", '"><img src=http://x.invalid/ onerror=alert(1)>', "a&amp;b", "{{ 7*7 }}{% x"),
    *("../x", "שלום \u202eevil", "x" * 256, "🐜🏳️‍🌈"),
]


class Page(html.parser.HTMLParser):
    """What stands on a page: its text by section, attributes by element, rows of its tables, and whether its elements are closed.

    Args:
        path: Of the page.
    """

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: dict[str, list[list[str]]] = {}
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
        if {"td", "th"} & set(self._open):
            self.rows[self._section][-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


def prepare(folder: pathlib.Path, source: str, *options: str) -> pathlib.Path:
    assert main(["prepare", "--input", str(folder / source), "--output", str(folder / "out"), "--quiet", *options]) == 0
    return folder / "out"


def table(folder: pathlib.Path, num: int, row, files=lambda index: {}) -> str:
    """A table of examples with an image each: `row` and `files` tell of one by its number."""
    for index in range(num):
        write_files(folder, {f"{index}.jpg": jpeg(index, 24, 20 + index % 9), **files(index)})
    (folder / "rows.jsonl").write_text("".join(json.dumps({"file_name": f"{index}.jpg", **row(index)}) + "\n" for index in range(num)))
    return "rows.jsonl"


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> pathlib.Path:
    """Three classes in three splits, and two dead letters."""
    folder = tmp_path_factory.mktemp("classes")
    write_class_folders(folder / "in", {"ant": 90, "bee": 40, "cow": 8})
    write_files(folder / "in", {"bee/none.jpg": b"<b>no image</b>", "ant/half.jpg": jpeg(3)[:300]})
    return prepare(folder, "in", "--splits=train=0.7,validation=0.2,test=0.1", "--max_bad_fraction=0.1", "--name=made", "--seed=7")


def test_it_says_what_the_data_set_is(classes):
    page = Page(classes / REPORT)
    statistics = json.loads((classes / STATISTICS).read_text())["splits"]
    header, *rows = page.rows["classes-1"]
    assert header[:4] == ["class", "train", "validation", "test"] and [row[0] for row in rows] == ["ant", "bee", "cow"]
    for name, *counts, _ in rows:
        assert list(map(int, counts)) == [statistics[split]["label_counts"][name] for split in ("train", "validation", "test")]
    summary = " ".join(page.sections["summary"].split())
    assert "138 examples" in summary and "3 splits" in summary and "16 × 16 pixels" in summary
    assert "2 of 140 inputs (1.43%) were refused" in summary and "Worth a look" in summary
    quality = page.rows["shuffle"][1]
    shuffle = statistics["train"]["shuffle"]["label"]
    assert quality[:4] == ["train", "label", *(f"{shuffle[key]:.2f}" for key in ("mean_run_length", "expected_mean_run_length"))]
    ((reason, stage, num, such),) = page.rows["dead-letters"][1:]
    assert (reason, stage, num) == ("bad_image", "check", "2") and "bee/none.jpg" in such and "ant/half.jpg" in such
    assert "--splits" in page.sections["made"] and "7/10" in page.sections["made"] and "made-train.tfrecord-*" in page.sections["made"]
    assert [row[0] for row in page.rows["splits"][1:]] == ["train", "validation", "test"]
    assert {row[0] for row in page.rows["features"][1:]} == {"height", "image", "key", "label", "width"}
    pictures = [image for image in page.all("img") if image["alt"].startswith("cow: cow/")]
    assert len(pictures) == 8 and all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))


def test_the_order_is_by_path_and_then_shuffled(classes):
    labels = [attributes["aria-label"] for attributes in Page(classes / REPORT).all("svg") if attributes.get("class") == "strip"]
    before, after = (int(re.search(r"(\d+) runs", label)[1]) for label in labels)
    assert before == 3 and after > 20


def test_equal_runs_and_the_command_give_equal_pages(classes, tmp_path, capfd):
    """Though they lie elsewhere, are read by other processes, and come at another time."""
    shutil.copytree(classes.parent / "in", tmp_path / "in")
    options = ["--splits=train=0.7,validation=0.2,test=0.1", "--max_bad_fraction=0.1", "--name=made", "--seed=7"]
    again = prepare(tmp_path, "in", *options, "--runner=FnApiRunner")
    written = (classes / REPORT).read_bytes()
    assert (again / REPORT).read_bytes() == written
    (again / REPORT).unlink()
    assert main(["report", str(again)]) == 0 and (again / REPORT).read_bytes() == written
    assert capfd.readouterr().out.split()[-1] == str(again / REPORT)
    assert main(["report", str(classes), "--page", str(tmp_path / "page.html")]) == 0 and (tmp_path / "page.html").read_bytes() == written


def test_no_report(tmp_path):
    write_class_folders(tmp_path / "in", {"ant": 12})
    assert not (prepare(tmp_path, "in", "--no_report", "--splits=train=1") / REPORT).exists()


def test_hostile_names_are_text(tmp_path):
    source = table(tmp_path, 64, lambda index: {"label": HOSTILE[index % 8]})
    page = Page(prepare(tmp_path, source, "--splits=train=1") / REPORT)
    assert {row[0] for row in page.rows["classes-1"][1:]} == set(HOSTILE)
    check_safe(page)


def check_safe(page: Page) -> None:
    """Nothing in it comes from a name, or from elsewhere."""
    assert len(page.all("script")) == 1 and not page.all("link") and not page.all("iframe")
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcset")], (tag, attributes)
        assert attributes.get("src", "data:").startswith("data:image/") or "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "unsafe" not in policy


def test_boxes_masks_several_heads_and_no_classes(tmp_path):
    source = table(
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
    assert {f"classes-{place}" for place in (1, 2, 3)} <= set(page.sections) and "samples" not in page.sections
    boxes = [one for one in page.all("svg") if one.get("class") == "boxes"]
    masks = [one for one in page.all("img") if one.get("class") == "mask"]
    assert boxes and masks and all(one["src"].startswith("data:image/png") for one in masks)
    assert {one["id"] for one in page.all("input") if one["type"] == "checkbox"} == {"show-boxes", "show-masks"}
    out = prepare(tmp_path / "plain", table(tmp_path / "plain", 20, lambda index: {}), "--label=none", "--splits=train=1")
    page = Page(out / REPORT)
    assert "samples" in page.sections and not any(name.startswith("classes") for name in page.sections)


def png_mask(height: int, width: int) -> bytes:
    mask = np.zeros((height, width), np.uint8)
    mask[4:12, 5:15] = 1
    return encode(mask, "PNG")


def test_data_without_images_tensors_and_pairs_of_images(tmp_path):
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
    source = table(pairs, 20, lambda index: {"right": f"r/{index}.png"}, lambda index: {f"r/{index}.png": png(index, 30, 30)})
    page = Page(prepare(pairs, source, "--label=none", "--feature=right:image", "--splits=train=1") / REPORT)
    assert len([image for image in page.all("img")]) >= 40


@pytest.mark.slow(1)
def test_a_page_stays_small_whatever_the_data_set(tmp_path):
    """Of as many classes as may be, with names as long as may be, and images that compress badly."""
    names = [f"{index:04d}<&\"'{'é<&>' * 60}" for index in range(1_500)]
    rows = "".join(f"{json.dumps({'key': f'k{index}', 'city': 'c', 'label': name})}\n" for index, name in enumerate(names))
    write_files(tmp_path, {"rows.jsonl": rows.encode()})
    page = prepare(tmp_path, "rows.jsonl", "--image=none", "--feature=city", "--splits=train=1") / REPORT
    assert page.stat().st_size < 5_000_000 and "And 500 more classes" in page.read_text()
    write_files(tmp_path / "noise", {f"in/{index % 3}/{index}.png": png(index, 256, 256) for index in range(24)})
    page = prepare(tmp_path / "noise", "in", "--splits=train=1") / REPORT
    assert len(Page(page).all("img")) >= 24 and page.stat().st_size < 1_500_000


def damage(path: pathlib.Path, name: str, change) -> None:
    (path / name).write_text(change((path / name).read_text()))


def test_damaged_and_foreign_data_sets_are_one_line(classes, tmp_path, capfd):
    other = "made-train.tfrecord"
    cases = {
        "no data set": (lambda path: (path / MANIFEST).unlink(), "is not a data set"),
        "no statistics": (lambda path: (path / STATISTICS).unlink(), STATISTICS),
        "other statistics": (lambda path: (path / STATISTICS).write_text('{"splits": 3}'), "not such as are written"),
        "no JSON": (lambda path: (path / "run.json").write_text("{"), "run.json: no JSON"),
        "dead letters": (lambda path: (path / DEAD_LETTERS).write_text("3\n"), "line 1"),
        "newer format": (lambda path: damage(path, MANIFEST, lambda text: text.replace('version": 2', 'version": 3')), "version 3"),
        "outside": (lambda path: damage(path, MANIFEST, lambda text: text.replace(other, f"../../{other}")), f"../../{other}"),
        "a catalog": (lambda path: next((path / "catalog").iterdir()).write_bytes(b"PAR1"), "catalog/made-"),
        "an index": (lambda path: [one.write_bytes(b"") for one in (path / "index").iterdir()], "an index of 0 bytes"),
        "shards": (lambda path: [one.write_bytes(bytes(10_000)) for one in path.glob("*.tfrecord-*")], "not such as are written"),
    }
    for case, (change, expected) in cases.items():
        copy = pathlib.Path(shutil.copytree(classes, tmp_path / case))
        (copy / REPORT).unlink()
        change(copy)
        assert main(["report", str(copy)]) == 2, case
        told = capfd.readouterr().err.strip()
        assert expected in told and "\n" not in told and not (copy / REPORT).exists(), case


def test_a_data_set_without_catalogs_has_a_page(classes, tmp_path):
    """As `recordmill transform` writes it."""
    copy = pathlib.Path(shutil.copytree(classes, tmp_path / "copy"))
    damage(copy, MANIFEST, lambda text: re.sub(r'"catalog": ".*"', '"catalog": ""', text))
    assert main(["report", str(copy)]) == 0
    page = Page(copy / REPORT)
    assert {"classes-1", "shuffle", "splits"} <= set(page.sections) and "oddest" not in page.sections and not page.all("img")


def test_leaks_are_shown_where_they_are_known(classes, tmp_path):
    copy = pathlib.Path(shutil.copytree(classes, tmp_path / "copy"))
    assert "leaks" not in Page(copy / REPORT).sections
    leaks = {"twins": {"num_pairs": 1234, "conflicts": [[{"key": "a<i>", "label": "ant"}, {"key": "b", "label": "bee"}]]}, "now": None}
    leaks["classes"] = {"ant": {"train": 0.75, "test": 0.25}, "bee": "?"}
    (copy / "leaks.json").write_text(json.dumps(leaks))
    assert main(["report", str(copy)]) == 0
    rows = dict(Page(copy / REPORT).rows["leaks"][1:])
    assert rows["share of ant"] == "train 75.0%, test 25.0%" and rows["classes.bee"] == "?"
    assert rows["twins.num_pairs"] == "1,234" and "a<i>" in rows["twins.conflicts"] and rows["now"] == "–"
