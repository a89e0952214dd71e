"""Tests that near-duplicate images with conflicting labels are found for all kinds of label features."""

import numpy as np

from beam_pipelines.elements.label_conflicts import Conflict, Conflicts, find_conflicts, order_clusters, read_labels
from beam_pipelines.elements.listed_values import value_writer
from beam_pipelines.images.annotations import Objects
from beam_pipelines.storage.spool import SpoolReader
from tf_input.dataset_format import Feature


def test_features_are_compared_separately_and_unknown_labels_never_conflict():
    clusters = np.array([0, 0, 0, 1, 1, 2, 2])
    labels = {
        "tags": [("a",), ("a",), (), ("b",), ("b",), ("a", "b"), ("a", "b")],
        "label": ["x", None, "y", None, "x", "x", "x"],
        "same": [None] * 7,
    }
    first = (Conflict("label", (("k0", "x"), ("k2", "y"))), Conflict("tags", (("k0", ("a",)), ("k2", ()))))
    assert find_conflicts(clusters, "k{}".format, labels) == Conflicts(1, {"tags": 1, "label": 1, "same": 0}, first)
    assert find_conflicts(clusters[:0], str, {"label": []}) == Conflicts(0, {"label": 0})


def test_clusters_are_ordered_by_their_first_keys():
    members, numbers = order_clusters(np.array([9, 4, 9, 5, 4]), np.array([4, 1, 3, 0, 2]))
    assert members.tolist() == [1, 4, 2, 0] and numbers.tolist() == [0, 0, 1, 1]


def test_labels_of_all_kinds_of_features_are_read(tmp_path):
    schema = [
        Feature("label", "class_label", label_names=("x", "y")),
        Feature("objects/bbox", "bbox", (None, 4)),
        Feature("objects/label", "class_label", (None,), label_names=("cat", "dog")),
        Feature("tags", "class_label", (None,), label_names=("a", "b")),
        Feature("weather", "class_label", label_names=("sun", "rain")),
    ]
    box = (0.0, 0.0, 1.0, 1.0)
    values = {"objects": Objects((box,) * 3, ("dog", "cat", "dog")), "tags": ("b", "a" * 5000), "weather": "rain"}
    with value_writer(str(tmp_path)) as writer:
        data = [writer.encode(values), writer.encode({"objects": Objects((), ()), "tags": (), "weather": "sun"})]
    spool = SpoolReader(str(tmp_path))
    actual = read_labels(schema, [b"x", b"y"], data, spool)
    spool.close()
    expected = {"label": ["x", "y"], "objects/label": [("cat", "dog"), ()], "tags": [("a" * 5000, "b"), ()], "weather": ["rain", "sun"]}
    assert actual == expected
