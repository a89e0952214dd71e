"""Tests that the parts of a listing are merged into the schema, class names and splits of a dataset."""

import pickle
import random
from typing import Any, Iterator

import pytest

from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord
from beam_pipelines.elements.listing import Listing
from beam_pipelines.errors import UserError
from beam_pipelines.images.annotations import Objects
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.sources.listing import group_counts
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.make_listing import make_listing
from beam_pipelines.sources.registry import find_kind
from beam_pipelines.sources.source import Source
from tf_input.dataset_format import Feature

CLASS = Feature("label", "class_label")
SEVERAL = Feature("label", "class_label", (None,))
OBJECTS = (Feature("objects/bbox", "bbox", (None, 4)), Feature("objects/label", "class_label", (None,)))


class MadeSource(Source):
    """A fake source whose listing consists of the given parts."""

    kind, root = find_kind("table"), "in"

    def __init__(self, *parts: list, features: tuple[Feature, ...] = (CLASS,), known: dict | None = None) -> None:
        super().__init__(PrepareOptions("in", "out", "made", source=SourceConfig(kind=self.kind)))
        self._parts = parts
        self.features = features
        self.targets = tuple(dict.fromkeys(feature.name.split("/")[0] for feature in features))
        self._known = known or {}

    def parts(self) -> list[str]:
        return [str(index) for index in range(len(self._parts))]

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        self.num_ignored += 1
        yield from self._parts[int(part)]

    def label_names(self) -> dict:
        return self._known


def list_source(made: MadeSource, **options: Any) -> Listing:
    config = PrepareOptions("in", "out", "made", **{"source": SourceConfig(kind=find_kind("table")), **options})
    parts = []
    for part in made.parts():
        result = ListedFacts()
        listed = [item if isinstance(item, list) else [item] for item in list_part(made, part, result)]
        assert sorted(map(repr, sum(listed, []))) == sorted(map(repr, made._parts[int(part)]))
        parts.append(result)
    random.Random(0).shuffle(parts)
    merged = ListedFacts()
    for result in parts:
        merged.merge(result)
    return make_listing(config, made, merged)


def image(index: int, label: str = "", split: str | None = None, **fields: Any) -> InputRecord:
    return InputRecord(f"{index}.jpg", f"{index}.jpg", label, split, num_bytes=10, **fields)


def make_images(*labels: str) -> list[InputRecord]:
    return [image(index, label) for index, label in enumerate(labels)]


def class_names(listing: Listing, feature: str = "label") -> tuple[str, ...]:
    return next(item.label_names for item in listing.schema if item.name == feature)


def test_parts_are_merged_in_any_order():
    parts = [make_images("cat", "dog"), [image(7, "bird"), DeadLetter("x", "list", "bad_row", "…")], []]
    listing = list_source(MadeSource(*parts))
    assert (listing.num_inputs, listing.num_bytes, listing.num_ignored, listing.dead_letters.num) == (4, 30, 3, 1)
    assert [feature.name for feature in listing.schema] == ["height", "image", "key", "label", "width"]
    assert class_names(listing) == ("bird", "cat", "dog") and listing.listed_labels == {"label": {"bird", "cat", "dog"}}
    assert (listing.splits, listing.source, listing.targets) == (("train", "validation"), "table", ("label",))


def test_total_bytes_are_known_if_every_image_has_a_size():
    sized, unsized = make_images("cat", "dog"), [image(7, "bird")._replace(num_bytes=0)]
    for case, parts, num_bytes in (("all sized", [sized, []], 20), ("one unsized", [sized, unsized], 0), ("unsized", [unsized], 0)):
        listing = list_source(MadeSource(*parts))
        assert (listing.num_bytes, listing.has_sizes) == (num_bytes, num_bytes > 0), case


def test_check_none_omits_height_and_width():
    assert [feature.name for feature in list_source(MadeSource(make_images("a")), check="none").schema] == ["image", "key", "label"]


@pytest.mark.parametrize(
    "result, options, known, expected",
    [
        (["b", "a"], {}, None, ("a", "b")),
        (["2", "10", "0"], {}, None, tuple(map(str, range(11)))),  # label 10 keeps the index 10
        (["02", "10", "00"], {}, None, ("00", "02", "10")),  # digits with leading zeros are names
        (["2", "3", "A", "b", "C", "d"], {}, None, ("2", "3", "A", "C", "b", "d")),  # digits beside letters are names
        (["0", "1", "A"], {}, None, ("0", "1", "A")),  # the indices of 0 and 1 do not change
        (["9999"], {}, None, tuple(map(str, range(10_000)))),
        ([str(n) for n in range(0, 150_000, 9)], {}, None, tuple(map(str, range(149_995)))),
        (["10", "2", "1"], {"source": SourceConfig(kind=find_kind("image_folder"))}, None, ("1", "2", "10")),
        (["10", "1", "01"], {"source": SourceConfig(kind=find_kind("image_folder"))}, None, ("01", "1", "10")),
        (["10", "2", "x"], {"source": SourceConfig(kind=find_kind("image_folder"))}, None, ("10", "2", "x")),  # x is not a number
        (["b"], {}, {"label": ("z", "b", "a")}, ("z", "b", "a")),  # order given by the source
        (["b"], {}, {"label": {"z"}}, ("b", "z")),
        (["b"], {"source": SourceConfig(kind=find_kind("table"), label_names=("x", "b"))}, None, ("x", "b")),
    ],
)
def test_order_of_class_names_does_not_depend_on_the_listing(result, options, known, expected):
    assert class_names(list_source(MadeSource(make_images(*result), known=known), **options)) == expected


def test_class_names_are_collected_from_every_kind_of_label():
    several = [image(0, values={"label": ("b", "a")}), image(1, values={"label": ()})]
    assert class_names(list_source(MadeSource(several, features=(SEVERAL,)))) == ("a", "b")
    rows = [image(0, values={"weather": "sun", "ground": "mud"}), image(1, values={"weather": "rain", "ground": "mud"})]
    both = list_source(MadeSource(rows, features=(Feature("ground", "class_label"), Feature("weather", "class_label"))))
    assert (class_names(both, "weather"), class_names(both, "ground")) == (("rain", "sun"), ("mud",))
    boxes = [image(0, values={"objects": Objects(((0, 0, 1, 1),) * 2, ("cat", "ant"))})]
    actual = list_source(MadeSource(boxes, features=OBJECTS))
    assert class_names(actual, "objects/label") == ("ant", "cat") and actual.listed_labels == {"objects/label": {"cat", "ant"}}
    assert actual.targets == ("objects",)


def test_splits_of_the_source_are_used():
    given = [image(0, "a", "test"), image(1, "a", "train"), image(2, "a", "extra")]
    listing = list_source(MadeSource(given[:1], given[1:]))
    assert (listing.splits, listing.fractions) == (("train", "test", "extra"), None)


@pytest.mark.parametrize(
    "source, options, message",
    [
        (MadeSource([]), {}, "no readable image"),
        (MadeSource([DeadLetter("1.csv:7", "list", "bad_row", "two fields")]), {}, "1.csv:7"),
        (MadeSource([image(0, "a", "test"), image(1, "a")]), {}, "name their split"),
        (MadeSource([image(0, "a", "test")]), {"splits": {"train": 1}}, r"splits \(test\).*Omit --splits"),
        (MadeSource([image(0, "a", "test"), image(1, "a")]), {"source": SourceConfig(kind=find_kind("table"), divide=("test",))}, "--divide test,rest"),
        (MadeSource(make_images("a")), {"source": SourceConfig(kind=find_kind("table"), label_names=("b",))}, "class 'a'"),
        (MadeSource(make_images("7", "100000")), {}, "label: .*100000"),
        (MadeSource(make_images("7", "9" * 200)), {}, "label is 99999"),
        (MadeSource(make_images("7", "8", "10", "n/a")), {}, "not 'n/a'"),
        (MadeSource([image(n, "a", f"s{n}") for n in range(300)]), {}, r"name at least 300 splits \(s0, s1, s10, …\).*256"),
        (MadeSource(make_images("a")), {"images": ImageConfig(encoding="raw")}, "--image_encoding=raw"),
        (MadeSource(make_images("a")), {"images": ImageConfig(format="png"), "check": "none"}, "--check=header"),
        (MadeSource([image(0, raw=RawImage(2, 2, 1))], features=()), {"check": "none"}, "--check=header"),
        (
            MadeSource([image(0, values={"objects": Objects((), ())})], features=OBJECTS),
            {"check": "none"},
            "'objects/bbox' .*--check=header",
        ),
        (
            MadeSource([image(0, raw=RawImage(2, 2, 1)), image(1, raw=RawImage(2, 2, 3))], features=()),
            {"images": ImageConfig(encoding="raw")},
            "--image_encoding=raw",
        ),
    ],
)
def test_rejects_invalid_listings(source, options, message):
    with pytest.raises(UserError, match=message):
        list_source(source, **options)


@pytest.mark.parametrize(
    "images, size, shape",
    [
        ([image(0)], ("exact", 4, 5), (4, 5, 3)),
        ([image(0, raw=RawImage(8, 9, 1))], None, (8, 9, 1)),
        ([image(0, raw=RawImage(8, 9, 3, True))], ("exact", 4, 5), (4, 5, 3)),
    ],
)
def test_raw_images_have_a_shape(images, size, shape):
    listing = list_source(MadeSource(images, features=()), images=ImageConfig(size=size, encoding="raw"))
    assert next(f for f in listing.schema if f.name == "image") == Feature("image", "pixels", shape)


def test_text_feature_is_long_if_any_value_exceeds_1024_bytes(monkeypatch):
    features = (CLASS, *(Feature(name, "text") for name in ("fits", "long", "wide")))
    values = [{"fits": "a" * 1024, "long": "a", "wide": "ä" * 512}, {"fits": "", "long": "a" * 1025, "wide": ""}, {"fits": "", "long": "", "wide": "ä" * 513}]
    listing = list_source(MadeSource(*([InputRecord(f"{i}", f"{i}", "a", None, values=item)] for i, item in enumerate(values)), features=features))
    assert {feature.name for feature in listing.schema if feature.is_long} == {"long", "wide"}


def test_only_a_few_different_image_sizes_are_kept():
    raws = [RawImage(1 + index, 5, channels, dtype=dtype) for index in range(50) for channels, dtype in ((3, "|u1"), (2, "<f4"))]
    first, second = ListedFacts(), ListedFacts()
    for raw in raws:
        first.schema.add_raws({raw, None})
    for raw in reversed(raws):
        second.schema.add_raws({raw})
    second.merge(first)
    assert first.schema.raws == second.schema.raws == {None, *raws[:4]}


def test_group_counts_do_not_depend_on_the_order(monkeypatch):
    monkeypatch.setattr(group_counts, "_NUM_WAITING", 5)
    rows = [(f"p{index % 7}".encode(), "test" if index in (3, 10, 12) else "train") for index in range(40)] + [(b"", "train")] * 3
    actual = []
    for order in (rows, rows[::-1]):
        merged = group_counts.GroupCounts()
        for start in range(0, len(order), 4):
            part = group_counts.GroupCounts()
            part.add(*zip(*order[start : start + 4]))
            merged.merge(pickle.loads(pickle.dumps(part)))
        groups, nums = merged.sizes()
        actual.append((groups, nums.tolist(), merged.spanning()))
    assert actual[0] == actual[1] == ([f"p{number}".encode() for number in range(7)], [6] * 5 + [5] * 2, (2, b"p3", {"train", "test"}))
    assert group_counts.GroupCounts().spanning()[0] == 0 and group_counts.GroupCounts().sizes()[0] == []


def test_pickled_group_counts_are_small():
    """Pickling a slice of an Arrow table would pickle the whole table."""
    complete, part = group_counts.GroupCounts(), group_counts.GroupCounts()
    complete.add([b"group %06d" % number for number in range(100_000)], ["train"] * 100_000)
    complete.sizes()
    part.tables = [complete.tables[0].slice(5, 10)]
    assert len(pickle.dumps(part)) < 5_000 and len(pickle.dumps(complete)) < 6_000_000
    for item in (complete, part, group_counts.GroupCounts()):
        assert pickle.loads(pickle.dumps(item)) == item
