"""Tests that planned splits do not divide groups and do not depend on the order in which inputs are listed."""

import contextlib
import csv
import pathlib
import random
import re
import tempfile
import types
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.division import Division
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.reference_runs import read_references, write_run
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.splits import split_facts
from beam_pipelines.splits.assign_splits import ReadSplitFacts, assign, resolve as resolve_splits
from beam_pipelines.splits.earlier_splits import load_earlier_splits
from beam_pipelines.splits.split_facts import SplitSpec
from beam_pipelines.storage.spool import SpoolReader
from made_records import write_dataset
from made_references import make_run, make_references
from tf_input.dataset_format import Feature

LABEL = [Feature("label", "class_label")]
SHARES = {"train": Fraction("0.7"), "validation": Fraction("0.2"), "test": Fraction("0.1")}


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """Context manager that provides a temporary folder for one example of a property test."""
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


def resolve(
    images: Sequence[InputRecord],
    num_runs: int = 1,
    directory: pathlib.Path | None = None,
    features: Sequence[Feature] = LABEL,
    **options: Any,
) -> tuple[dict[str, str], Division]:
    """Returns the split of each example key, and the summary of the splits."""
    with folder() as own:
        made = make_run(directory or own, **{"splits": SHARES, **options})
        batches = [images[number::num_runs] for number in range(num_runs) if images[number::num_runs]]
        runs = [write_run([make_references(batch, made, features)], made.run.spool_directory) for batch in batches]
        read = ReadSplitFacts(made.spec(SplitSpec))
        facts = [next(read.process(run)) for run in runs]
        listing = types.SimpleNamespace(splits=(*made.options.shares, *(item.split for item in images)))
        *resolved, division = resolve_splits(b"", facts[::-1], listing, made.spec(SplitSpec))
        actual = {}
        for of_run in resolved:
            written, _ = assign(("", [of_run]), made.run.spool_directory)
            with SpoolReader(made.run.spool_directory) as spool:
                references = read_references(written.smallest(written.num_references), spool)
            actual |= {key.decode(): references.splits[split] for key, split in zip(references.keys, references.rows["split"].tolist())}
            assert not references.strata.blob, "strata are not needed after this stage"
    return actual, division.value


def image(number: int, label: str, group: str = "", split: str | None = None) -> InputRecord:
    return InputRecord(f"{number:05d}.jpg", f"{number:05d}.jpg", label, split, group=group)


def counts_by(result: dict[str, str], images: Sequence[InputRecord], field: str = "label") -> dict[str, Counter]:
    """Returns the number of inputs in each split for each value of `field`, such as a label or a group."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for item in images:
        counts[getattr(item, field)][result[item.key]] += 1
    return counts


LABELS = st.lists(st.sampled_from("aaaaabbc"), min_size=1, max_size=120)


@settings(max_examples=30)
@given(LABELS, st.integers(1, 4), st.integers(0, 2**32))
def test_classes_and_splits_have_their_shares_in_any_listing_order(labels, num_runs, seed):
    images = [image(number, label) for number, label in enumerate(labels + list("abc") * 10)]
    actual, division = resolve(images, splits=SHARES, stratify=("label",))
    for label, counts in counts_by(actual, images).items():
        for split, share in SHARES.items():
            assert abs(counts[split] - share * counts.total()) < 1, (label, split)
    totals = Counter(actual.values())
    assert all(abs(totals[split] - share * len(images)) < 1 for split, share in SHARES.items())
    assert dict(division.num_inputs) == dict(totals) and division.excess is None
    shuffled = random.Random(seed).sample(images, len(images))
    assert resolve(shuffled, num_runs, stratify=("label",), seed=seed)[0] == actual, "order and seed must not matter"


GROUPS = st.lists(st.tuples(st.sampled_from("aab"), st.integers(0, 12)), min_size=30, max_size=120)


@pytest.mark.slow
@settings(max_examples=30)
@given(GROUPS, st.integers(1, 4), st.integers(0, 2**32))
def test_groups_stay_in_one_split_in_any_listing_order(rows, num_runs, seed):
    images = [image(number, label, f"p{group}" if group else "") for number, (label, group) in enumerate(rows)]
    options = {"splits": {"train": Fraction(1, 2), "test": Fraction(1, 2)}, "stratify": ("label",)}
    actual, division = resolve(images, **options)
    groups = counts_by(actual, [item for item in images if item.group], "group")
    assert all(len(counts) == 1 for counts in groups.values())
    totals = Counter(actual.values())
    assert dict(division.num_inputs) == dict(totals) and division.num_groups == len(groups)
    largest = max((counts.total() for counts in groups.values()), default=0)
    assert abs(totals["train"] - len(images) / 2) <= max(largest, 1)
    shuffled = random.Random(seed).sample(images, len(images))
    assert resolve(shuffled, num_runs, **options)[0] == actual


@pytest.mark.parametrize("options", [{"stratify": ("label",)}, {}], ids=["stratified", "by hash"])
def test_earlier_inputs_keep_their_splits(options, tmp_path):
    images = [image(number, "ab"[number % 3 == 0], f"p{number // 7}" if number % 2 else "") for number in range(300)]
    old, new = images[:150], images
    actual, _ = resolve(old, stratify=("label",))
    with open(tmp_path / "old.csv", "w") as file:
        csv.writer(file).writerows([("key", "split", "note"), *((key, split, "") for key, split in actual.items()), ("gone.jpg", "train", "")])
    options = {**options, "splits_from": str(tmp_path / "old.csv")}
    grown, division = resolve(new, 3, **options)
    assert {key: grown[key] for key in actual} == actual and division.num_kept == len(actual)
    assert all(len(counts) == 1 for counts in counts_by(grown, [item for item in new if item.group], "group").values())
    assert resolve(new[::-1], 2, **options)[0] == grown
    if options.get("stratify"):
        totals = Counter(grown.values())
        assert all(abs(totals[split] - share * len(new)) <= 2 for split, share in SHARES.items())


def test_earlier_splits_are_read_once_for_all_runs(tmp_path):
    images = [image(number, "a") for number in range(40)]
    table = tmp_path / "old.csv"
    table.write_text("key,split\n" + "".join(f"{item.key},{'test' if number % 2 else 'train'}\n" for number, item in enumerate(images)))
    made = make_run(tmp_path, splits=SHARES, splits_from=str(table))
    stage = ReadSplitFacts(made.spec(SplitSpec))
    for start in range(2):
        run = write_run([make_references(images[start::2], made, LABEL)], made.run.spool_directory)
        assert [facts.num_kept for facts in stage.process(run)] == [20]
        table.unlink(missing_ok=True)


def test_only_divided_splits_change():
    images = [image(number, "ab"[number % 2], split="test" if number % 5 == 0 else "train") for number in range(200)]
    shares = {"train": Fraction("0.9"), "validation": Fraction("0.1")}
    for stratify in ((), ("label",)):
        actual, division = resolve(images, 2, splits=shares, stratify=stratify, source=SourceConfig(kind=find_kind("image_folder"), divide=("train",)))
        assert {key for key, split in actual.items() if split == "test"} == {item.key for item in images if item.split == "test"}
    assert {label: dict(counts) for label, counts in counts_by(actual, images).items()} == {
        label: {"train": 72, "validation": 8, "test": 20} for label in "ab"
    }
    # Without strata, a hash divides the inputs.
    actual, _ = resolve(images, splits=shares, source=SourceConfig(kind=find_kind("image_folder"), divide=("train",)))
    names = ("train", "validation")
    locations = SplitByGroup(shares)([entry.key.encode() for entry in images if entry.split == "train"])
    assert [actual[element.key] for element in images if element.split == "train"] == [names[split] for split in locations]


def test_inputs_without_a_split_follow_their_group():
    images = [image(0, "a", "p1", "test"), image(1, "a", "p1"), image(2, "b", "p2", "train"), image(3, "b", "p2")]
    images += [image(number, "ab"[number % 2]) for number in range(4, 60)]
    source = SourceConfig(kind=find_kind("table"), divide=("rest",))
    for stratify in ((), ("label",)):
        actual, _ = resolve(images, 3, splits={"train": Fraction(1, 2), "dev": Fraction(1, 2)}, stratify=stratify, source=source)
        assert [actual[item.key] for item in images[:4]] == ["test", "test", "train", "train"]
        assert set(actual.values()) == {"train", "dev", "test"}


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (
            [image(0, "a", "p1", "test"), image(1, "a", "p1", "train"), image(2, "a", "", "train")],
            {"source": SourceConfig(kind=find_kind("image_folder"), divide=("train",)), "splits": {"train": Fraction(1, 2), "dev": Fraction(1, 2)}},
            "splits: 1, .*'p1' in train and test",
        ),
        (
            [image(0, "a", "p1", "test"), image(1, "a", "p1", "train"), image(2, "a", "p1")],
            {"source": SourceConfig(kind=find_kind("table"), divide=("rest",))},
            "splits: 1, .*'p1' in train and test",
        ),
        (
            [image(number, "a", f"p{number % 2}") for number in range(50)],
            {"stratify": ("label",)},
            "split 'test' would be empty: .*Inputs: 50, groups: 2, .*: 25",
        ),
        ([image(number, "a") for number in range(3)], {"stratify": ("label",)}, "split 'test' would be empty: none of 3 examples"),
    ],
)
def test_impossible_divisions_are_rejected(images, options, message):
    with pytest.raises(UserError, match=message):
        resolve(images, **options)


def test_group_that_exceeds_the_share_is_recorded():
    images = [image(number, "a", "large" if number < 40 else f"p{number // 3}") for number in range(100)]
    actual, division = resolve(images, splits={"one": Fraction(1, 4), "two": Fraction(1, 4), "three": Fraction(1, 2)}, stratify=("label",))
    assert division.excess is None or division.excess.group
    actual, division = resolve(images, splits={f"fold{fold}": Fraction(1, 5) for fold in range(5)}, stratify=("label",))
    excess = division.excess
    assert (excess.stratum, excess.num_inputs, excess.target, excess.group, excess.num_group) == ("a", 40, 20, "large", 40)
    assert division.to_json()["largest_excess"]["target"] == 20 and Counter(actual.values())[excess.split] == 40


def test_group_that_exceeds_the_share_of_a_hash_split_is_recorded():
    options = {"splits": {"one": Fraction(1, 2), "two": Fraction(1, 2)}, "duplicates": "group"}
    images = [image(number, "a", "large" if number < 50 else "") for number in range(60)]
    actual, division = resolve(images, 3, **options)
    division = division.with_inputs(Counter(actual.values()))
    assert (division.excess.split, division.excess.group, division.excess.num_group) == (actual[images[0].key], "large", 50)
    assert division.num_inputs == Counter(actual.values()) and division.excess.target == 30 and division.to_json()["num_groups"] == 1
    given = [image(number, "a", f"p{number}", "one" if number % 2 else "two") for number in range(20)]
    actual, division = resolve(given, **options)
    assert division.with_inputs(Counter(actual.values())) == division, "all splits are given"
    # Groups of two inputs do not exceed a share.
    actual, division = resolve([image(number, "a", f"p{number // 2}") for number in range(2000)], **options)
    assert division.with_inputs(Counter(actual.values())).excess is None


def test_equal_hashes_are_ordered_by_key(monkeypatch):
    images = [image(number, "a") for number in range(20)]
    monkeypatch.setattr(split_facts, "split_hashes", lambda texts: SplitByGroup.__call__.__globals__["split_hashes"]([b"one"] * len(texts)))
    actual, _ = resolve(images, 3, splits={"train": Fraction(3, 4), "test": Fraction(1, 4)}, stratify=("label",))
    assert [actual[key] for key in sorted(actual)] == ["train"] * 15 + ["test"] * 5


def test_stratum_with_fewer_inputs_than_splits_causes_a_warning():
    _, division = resolve([image(number, "a" if number else "rare") for number in range(50)], stratify=("label",))
    (reported,) = division.warnings()
    assert re.fullmatch(r"label: 'rare' .*inputs \(1\).* \(3\)\..*: \w+, \w+\.", reported), reported


def test_class_with_fewer_groups_than_splits_causes_a_warning():
    images = [image(number, "a", group=f"p{number // 5}") for number in range(100)]
    images += [image(number, "rare", group=f"q{number % 2}") for number in range(100, 110)]
    images += [image(110, "rarer", group="p0")]
    actual, division = resolve(images, splits={"train": Fraction(1, 2), "validation": Fraction(1, 4), "test": Fraction(1, 4)}, stratify=("label",))
    (reported,) = division.warnings()
    (lacking,) = {"train", "validation", "test"} - {actual[item.key] for item in images[100:110]}
    assert re.fullmatch(rf"label: 'rare' .*groups \(2\).*\(3\) \(and 1 more\)\..* {lacking}\.", reported), reported


def test_multiple_labels_and_objects_can_be_strata():
    features = [Feature("tags", "class_label", (None,)), Feature("objects/label", "class_label", (None,))]
    kinds = [("a",), ("b", "a"), ("a", "b")]
    images = []
    for number in range(60):
        tags = kinds[number % 3]
        objects = Objects(((0.0, 0.0, 1.0, 1.0),) * len(tags), tags, {}, None, True)
        images.append(image(number, "")._replace(values={"tags": tags, "objects": objects}))
    for feature in features:
        actual, _ = resolve(images, stratify=(feature.name,), features=[feature])
        counts = counts_by(actual, [item._replace(label="".join(sorted(item.values["tags"]))) for item in images])
        assert {label: dict(some) for label, some in counts.items()} == {
            "a": {"train": 14, "validation": 4, "test": 2},
            "ab": {"train": 28, "validation": 8, "test": 4},
        }, feature.name


def test_too_many_splits_are_rejected():
    images = [image(number, "a", split=f"s{number}" if number < 250 else "train") for number in range(260)]
    shares, divided = {f"fold{number}": Fraction(1, 10) for number in range(10)}, SourceConfig(kind=find_kind("image_folder"), divide=("train",))
    with pytest.raises(UserError, match="260 splits.* 256"):
        resolve(images, splits=shares, source=divided)


def test_earlier_dataset_without_catalogs_is_rejected(tmp_path):
    write_dataset(tmp_path / "made", [Feature("x", "float")], {"train": [{"x": 1.0}]})
    with pytest.raises(UserError, match="`recordmill transform`"):
        load_earlier_splits(str(tmp_path / "made"))
