"""Tests that the dataset card and `croissant.json` are correct and deterministic, and that class names are escaped."""

import html
import json
import pathlib
import re

import markdown
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.__main__ import main
from beam_pipelines.publish.card import dataset_card, quote, shown
from beam_pipelines.publish.croissant import describe_dataset
from made_images import write_class_folders
from tf_input.dataset_format import CROISSANT, Feature, Manifest, ShardInfo, read_manifest

ABOUT = {"license": "cc-by-4.0", "source": "https://example.org/a?b=1&c=<d>", "description": "# No *title*: |a| <script>", "citation": "Doe, 2024"}
HOSTILE = (
    *("<script>alert(1)</script>", "a|b", "![x](javascript:y)", "`code` *star* _under_", "https://example.org"),
    *("אבג", "\u202eabc", "😀", "x" * 256, "1. one"),
)


def make_card(names: tuple[str, ...], about: dict[str, str] = {}) -> str:
    """Returns the dataset card of a dataset with the given class names."""
    schema = (Feature("image", "image"), Feature("label", "class_label", (), names))
    shard = ShardInfo("made-train.tfrecord-00000-of-00001", len(names), 2048, 0, "index/…", 0, 0, "catalog/…", 1, 0)
    manifest = Manifest("made", 7, schema, {"train": (shard,)}, len(names) + 1, 1, about=about)
    statistics = {"images": {"formats": {"jpeg": 3}, "reencoded": {}}, "splits": {"train": {"label_counts": dict.fromkeys(names, 1)}}}
    return dataset_card(manifest, statistics)


def render_body(card: str) -> str:
    """Returns the body of a dataset card as HTML."""
    return markdown.markdown(card.split("---\n", 2)[2], extensions=["tables", "fenced_code"])


def test_card_shows_names_without_interpreting_markup() -> None:
    page = render_body(make_card(HOSTILE, ABOUT))
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {*("h1", "h2", "p", "ul", "li", "code", "pre"), *("table", "thead", "tbody", "tr", "th", "td")}, tags
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    for name in HOSTILE:
        expected = "\\u202eabc" if name == "\u202eabc" else f"{name[:79]}…" if len(name) > 80 else name
        assert expected in cells
    assert "# No *title*: |a| <script>" in html.unescape(page)


@given(st.text(max_size=30))
def test_any_text_survives_yaml_and_is_escaped_in_markdown(text: str) -> None:
    assert yaml.safe_load(f"a: {quote(text)}") == {"a": text}
    assert not re.search("<(?!p>|/p>)", markdown.markdown(f"x {shown(text)}"))


def test_card_shortens_long_class_list_and_has_valid_front_matter() -> None:
    card = make_card(tuple(f"c{number}" for number in range(1000)), ABOUT)
    assert "c99" in card and "c100" not in card and "900 more" in card and "label.labels.txt" in card
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "cc-by-4.0" and front["task_categories"] == ["image-classification"] and front["size_categories"] == ["1K<n<10K"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("card")
    source = write_class_folders(folder / "in", {"ant": 12, "bee": 12})
    about = [f"--about={name}={text}" for name, text in ABOUT.items()]
    splits = ["--splits=train=0.5,validation=0.5", "--num_shards=2", "--name=pets"]
    assert main(["prepare", "--input", str(source), "--output", str(folder / "out"), *splits, *about]) == 0
    return folder / "out"


def test_about_options_are_stored_in_manifest_and_croissant_and_verified(dataset: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    assert read_manifest(dataset).about == ABOUT
    croissant = json.loads((dataset / CROISSANT).read_text())
    assert (croissant["license"], croissant["citeAs"], croissant["url"]) == (ABOUT["license"], ABOUT["citation"], ABOUT["source"])
    assert main(["verify", str(dataset), "--quick"]) == 0
    text = (dataset / CROISSANT).read_text()
    (dataset / CROISSANT).write_text(text.replace("cc-by", "cc-bz"))
    assert main(["verify", str(dataset), "--quick"]) == 1 and f"{CROISSANT}: has " in capfd.readouterr().out
    (dataset / CROISSANT).write_text(text)
    for option, expected in (("licence=x", "did you mean 'license'"), ("license=", "WHAT=TEXT"), ("license", "WHAT=TEXT")):
        assert main(["prepare", "--input=/x", "--output=/y", f"--about={option}"]) == 2 and expected in capfd.readouterr().err


@pytest.mark.slow(1)
def test_mlcroissant_reads_examples_from_catalog(dataset: pathlib.Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    data = mlcroissant.Dataset(str(dataset / CROISSANT))
    assert not data.metadata.ctx.issues.errors
    rows = list(data.records("examples"))
    manifest = read_manifest(dataset)
    for split in manifest.splits:
        split_rows = [row for row in rows if row["examples/split"] == split.encode()]
        assert len(split_rows) == manifest.num_examples(split)
        assert all(row["examples/key"].startswith(row["examples/label"] + b"/") and row["examples/height"] == 16 for row in split_rows)


def test_croissant_has_no_record_set_without_catalog() -> None:
    shard = ShardInfo("made-train.tfrecord-00000-of-00001", 1, 1, 0, "index/…", 0, 0)
    fields = describe_dataset(Manifest("made", 0, (Feature("x", "float"),), {"train": (shard,)}, 1, 0))
    assert "recordSet" not in fields and [field["includes"] for field in fields["distribution"]] == ["made-*.tfrecord-*"]
