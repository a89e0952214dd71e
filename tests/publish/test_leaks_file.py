"""Tests the class statistics in `leaks.json`."""

from beam_pipelines.publish.leaks_file import class_shares
from tf_input.dataset_format import Feature


def test_class_shares_cover_each_label_and_omit_classes_without_examples():
    counts = {"train": {"ant": 3, "bee": 0}, "test": {"ant": 1, "bee": 0}}
    others = {"train": {"sun": 1, "rain": 1}, "test": {"sun": 0, "rain": 2}}
    splits = {split: {"label_counts": counts[split], "other_label_counts": {"weather": others[split]}} for split in counts}
    schema = [
        Feature("label", "class_label", label_names=("ant", "bee")),
        Feature("height", "integer"),
        Feature("weather", "class_label", label_names=("sun", "rain")),
    ]
    assert class_shares(schema, {"splits": splits}) == {
        "label": {"ant": {"train": 0.75, "test": 0.25}},
        "weather": {"sun": {"train": 1.0, "test": 0.0}, "rain": {"train": 1 / 3, "test": 2 / 3}},
    }
