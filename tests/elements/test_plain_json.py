"""Tests that supported values are equal after JSON encoding and decoding, and that unsupported values are rejected."""

import dataclasses
import json
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipelines.columns.column import Column
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements import plain_json
from beam_pipelines.elements.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.elements.division import Division, Excess
from beam_pipelines.elements.label_conflicts import Conflict, Conflicts
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import Plan, ShardAddress, SplitShards, WrittenShard
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.elements.reference_runs import SpoolRange
from beam_pipelines.elements.statistics import ImageStatistics, Range, SplitStatistics, sum_pixels
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.sources.registry import find_kind
from tf_input.dataset_format import Feature, ShardInfo

LETTERS = DeadLetterCount(7, [DeadLetter("a/é\n.jpg", "check", "bad_image", "0 bytes"), DeadLetter("b\udcff", "read", "unreadable", "…")])

CONFIG = PrepareOptions(  # with values of every type
    input="/in/é",
    output="s3://bucket/out",
    name="flowers",
    seed=2**64 - 1,
    splits={"train": Fraction(1, 3), "validation": Fraction(2, 3)},
    stratify=("label", "note"),
    num_shards={"train": 5, "validation": 2},
    max_bad_fraction=0.1,
    about={"license": "cc-by-4.0"},
    has_report=False,
    source=SourceConfig(
        kind=find_kind("table"),
        pixel_shape=(48, 48, 3),
        labels=(Column("label", ("a", "b"), "multi_label"), Column("grade", ("grade",), "float", (3,))),
        label_names_of={"grade": ("1", "2")},
        mask_values={255: 1},
    ),
    images=ImageConfig(("exact", 32, 48), "webp", 80),
)

LISTING = Listing(
    source="table",
    root="/in/é",
    schema=(Feature("image", "image"), Feature("label", "class_label", (None,), ("cat", "ä")), Feature("x", "float", (2, 3)), Feature("y", "text", is_long=True)),
    targets=("label",),
    listed_labels={"label": frozenset({"cat", "ä"}), "other": frozenset()},
    splits=("train", "validation"),
    fractions=CONFIG.splits,
    num_inputs=2**40,
    num_bytes=2**50,
    reference_bytes=2**41,
    num_ignored=3,
    dead_letters=LETTERS,
    versions={"/in/é/a.tar": "5 bytes, modified at 1.000000002"},
)

STATISTICS = ImageStatistics()
STATISTICS.splits[1] = SplitStatistics(5, 2**50, Counter({3: 2, 0: 3}), sum_pixels(np.full((4, 5, 3), 200, np.uint8)), {"objects/label": Counter({7: 1})})
STATISTICS.splits[1].add_tensor("x", TensorSums.of(np.array([1e-300, 0.1, 1e300]).tobytes(), "float64"))
STATISTICS.images_of("image").formats.update(["jpeg", "png", "jpeg"])
STATISTICS.images_of("right").heights.add([5, 2**31])
STATISTICS.dead_letters.merge(LETTERS)

WRITTEN = WrittenShard(
    ShardAddress("train", 3, 16),
    ShardInfo("made-train.tfrecord-00003-of-00016", 5, 2**33, 2**32 - 1, "index/…", 10, 11, "catalog/…", 12, 13),
    {"label": LabelSequence.of(np.array([1, 1, 2, 0])), "empty": LabelSequence.of(np.zeros(0, np.int64))},
    STATISTICS,
)

PLAN = Plan(CONFIG.texts, True, LISTING, {"train": SplitShards(100, 3), "test": SplitShards(1, 1)}, (SpoolRange(2**63 + 1, 0, 9),), "1")

VALUES = {
    "configuration": CONFIG,
    "configuration with default options": PrepareOptions("in", "out", "made"),
    "listing": LISTING,
    "listing with splits of the source": dataclasses.replace(LISTING, fractions=None),
    "listing divided into splits": dataclasses.replace(
        LISTING, division=Division(("label",), CONFIG.splits, {"train": 1}, 2, 3, 4, 1, "a", 1, ("test",), Excess("a", "train", 9, Fraction(7, 3), "p7", 5))
    ),
    "listing with duplicates": dataclasses.replace(
        LISTING,
        near_duplicates=NearDuplicates(
            *("drop", None, SpoolRange(5, 6, 7), SpoolRange(8, 9, 10), SpoolRange(0, 0, 0), False, 9, 10, 11, 12, 13, 14, "a", 1),
            Conflicts(2, {"label": 1, "tags": 1}, (Conflict("label", (("a", "é"), ("b", ""))), Conflict("tags", (("a", ("x", "y")), ("b", ()))))),
        ),
    ),
    "folds": PrepareOptions("in", "out", "made", folds=5, group_pattern="^[^/]+"),
    "shard": WRITTEN,
    "plan": PLAN,
    "empty range": Range(),
}


def classes_in(value: Any) -> list:
    """Returns the types of a value and of all nested values, because `==` does not compare types."""
    if isinstance(value, dict):
        return [type(value), *(classes_in(item) for item in value.items())]
    if isinstance(value, (list, tuple)):
        return [type(value), *map(classes_in, value)]
    if dataclasses.is_dataclass(value):
        return [type(value), *(classes_in(getattr(value, field.name)) for field in dataclasses.fields(value))]
    return [type(value)]


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_are_read_back_and_written_to_the_same_bytes(value):
    data = plain_json.dumps(value)
    actual = plain_json.loads(data, type(value))
    assert actual == value
    assert classes_in(actual) == classes_in(value)
    assert plain_json.dumps(actual) == data


def test_loaded_statistics_can_be_merged():
    actual = plain_json.loads(plain_json.dumps(WRITTEN), WrittenShard)
    actual.statistics.merge(STATISTICS)
    twice = ImageStatistics()
    for _ in range(2):
        twice.merge(STATISTICS)
    assert actual.statistics == twice


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.fractions()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(), st.tuples(st.integers())), inner, max_size=3),
        st.frozensets(st.text(max_size=2), max_size=3),
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_any_nested_plain_values_are_read_back(value):
    actual = plain_json.loads(plain_json.dumps(value), object)
    assert actual == value and classes_in(actual) == classes_in(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_infinite_and_nan_numbers_are_rejected(value):
    with pytest.raises(ValueError):
        plain_json.dumps((value,))


@pytest.mark.parametrize("value", [b"bytes", np.zeros(2), object(), DeadLetter])
def test_other_types_are_rejected(value):
    with pytest.raises(TypeError, match="not a plain value"):
        plain_json.dumps([value])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b"\xff",
        plain_json.dumps(CONFIG)[:-1],
        plain_json.dumps(LISTING),
        b'{"": "os.system", "fields": {"command": "true"}}',
        b'{"": "PrepareOptions", "fields": {"input": "in"}}',
        b'{"": "PrepareOptions", "fields": {"input": "in", "output": "out", "name": "made", "unknown": 1}}',
        b'{"": "PrepareOptions", "fields": []}',
        b'{"": "eval", "items": ["1"]}',
        b'{"": ["a"], "items": []}',
    ],
)
def test_invalid_data_is_a_value_error(data):
    with pytest.raises(ValueError):
        plain_json.loads(data, PrepareOptions)


def test_json_is_readable_by_other_programs():
    fields = json.loads(plain_json.dumps(CONFIG))["fields"]
    assert (fields["name"], fields["seed"], fields["source"]["fields"]["kind"]["fields"]["name"]) == ("flowers", 2**64 - 1, "table")
