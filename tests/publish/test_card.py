"""The card of a dataset and its `croissant.json`: true, the same for equal runs, and safe whatever names stand in them."""

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


def card_of(names: tuple[str, ...], about: dict[str, str] = {}) -> str:
    """Of a dataset with a class of each name."""
    schema = (Feature("image", "image"), Feature("label", "class_label", (), names))
    shard = ShardInfo("made-train.tfrecord-00000-of-00001", len(names), 2048, 0, "index/…", 0, 0, "catalog/…", 1, 0)
    manifest = Manifest("made", 7, schema, {"train": (shard,)}, len(names) + 1, 1, about=about)
    statistics = {"images": {"formats": {"jpeg": 3}, "reencoded": {}}, "splits": {"train": {"label_counts": dict.fromkeys(names, 1)}}}
    return dataset_card(manifest, statistics)


def body_of(card: str) -> str:
    """As a browser gets it."""
    return markdown.markdown(card.split("---\n", 2)[2], extensions=["tables", "fenced_code"])


def test_names_stand_in_the_card_as_they_are() -> None:
    page = body_of(card_of(HOSTILE, ABOUT))
    tags = set(re.findall(r"<(\w+)", page))
    assert tags <= {*("h1", "h2", "p", "ul", "li", "code", "pre"), *("table", "thead", "tbody", "tr", "th", "td")}, tags
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    for name in HOSTILE:
        expected = "\\u202eabc" if name == "\u202eabc" else f"{name[:79]}…" if len(name) > 80 else name
        assert expected in cells
    assert "# No *title*: |a| <script>" in html.unescape(page)


@given(st.text(max_size=30))
def test_any_text_comes_back_from_yaml_and_is_no_markup(text: str) -> None:
    assert yaml.safe_load(f"a: {quote(text)}") == {"a": text}
    assert not re.search("<(?!p>|/p>)", markdown.markdown(f"x {shown(text)}"))


def test_many_classes_are_cut_and_the_front_matter_is_read() -> None:
    card = card_of(tuple(f"c{number}" for number in range(1000)), ABOUT)
    assert "c99" in card and "c100" not in card and "900 more" in card and "label.labels.txt" in card
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "cc-by-4.0" and front["task_categories"] == ["image-classification"] and front["size_categories"] == ["1K<n<10K"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("card")
    source = write_class_folders(folder / "in", {"ant": 12, "bee": 12})
    about = [f"--about={name}={text}" for name, text in ABOUT.items()]
    splits = ["--splits=train=0.5,validation=0.5", "--num_shards=2", "--name=pets"]
    assert main(["prepare", "--input", str(source), "--output", str(folder / "out"), *splits, *about]) == 0
    return folder / "out"


def test_what_is_said_of_it_is_kept_and_verified(made: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    assert read_manifest(made).about == ABOUT
    croissant = json.loads((made / CROISSANT).read_text())
    assert (croissant["license"], croissant["citeAs"], croissant["url"]) == (ABOUT["license"], ABOUT["citation"], ABOUT["source"])
    assert main(["verify", str(made), "--quick"]) == 0
    text = (made / CROISSANT).read_text()
    (made / CROISSANT).write_text(text.replace("cc-by", "cc-bz"))
    assert main(["verify", str(made), "--quick"]) == 1 and f"{CROISSANT}: has " in capfd.readouterr().out
    (made / CROISSANT).write_text(text)
    for option, expected in (("licence=x", "did you mean 'license'"), ("license=", "WHAT=TEXT"), ("license", "WHAT=TEXT")):
        assert main(["prepare", "--input=/x", "--output=/y", f"--about={option}"]) == 2 and expected in capfd.readouterr().err


@pytest.mark.slow(1)
def test_loaders_of_croissant_read_the_catalog(made: pathlib.Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    data = mlcroissant.Dataset(str(made / CROISSANT))
    assert not data.metadata.ctx.issues.errors
    rows = list(data.records("examples"))
    manifest = read_manifest(made)
    for split in manifest.splits:
        of_split = [row for row in rows if row["examples/split"] == split.encode()]
        assert len(of_split) == manifest.num_examples(split)
        assert all(row["examples/key"].startswith(row["examples/label"] + b"/") and row["examples/height"] == 16 for row in of_split)


def test_without_a_catalog_there_is_no_record_set() -> None:
    shard = ShardInfo("Split-train/data_tfrecord-00000-of-00001", 1, 1, 0, "index/…", 0, 0)
    fields = describe_dataset(Manifest("made", 0, (Feature("x", "float"),), {"train": (shard,)}, 1, 0))
    assert "recordSet" not in fields and [field["includes"] for field in fields["distribution"]] == ["Split-*/data_tfrecord-*"]
