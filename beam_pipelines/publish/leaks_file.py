"""Encodes `leaks.json`, which reports duplicates across splits and the class balance between splits."""

from typing import Any, Iterable, Mapping

from beam_pipelines.elements.near_duplicates import NearDuplicates
from beam_pipelines.publish.summary import label_counts
from tf_input.dataset_format import Feature, to_checked_json


def encode_leaks(near_duplicates: NearDuplicates, now: Mapping[str, Any], schema: Iterable[Feature], statistics: Mapping[str, Any]) -> str:
    """Returns the contents of `leaks.json`.

    Args:
        near_duplicates: The near-duplicates that were found before the shards were written.
        now: The duplicates across splits of the written dataset, from `find_leaks`.
        schema: The features of the dataset.
        statistics: The contents of `statistics.json`.
    """
    fields = {"detected": near_duplicates.to_json(), "remaining": now, "classes": class_shares(schema, statistics)}
    return to_checked_json(fields)


def class_shares(schema: Iterable[Feature], statistics: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns how the examples of each class are distributed among the splits, as fractions. Omits unused classes."""
    shares = {}
    for feature in schema:
        if feature.is_categorical:
            counts = {split: label_counts(statistics, split, feature.name) for split in statistics["splits"]}
            totals = {name: sum(of_split[name] for of_split in counts.values()) for name in feature.label_names}
            shares[feature.name] = {
                name: {split: item[name] / total for split, item in counts.items()} for name, total in totals.items() if total
            }
    return shares
