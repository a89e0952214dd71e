"""`leaks.json`, the certificate: what was found, what is there now, and how the classes are shared out."""

from typing import Any, Iterable, Mapping

from beam_pipelines.elements.twins import Twins
from beam_pipelines.publish.summary import label_counts
from tf_input.dataset_format import Feature, to_checked_json


def encode_leaks(twins: Twins, now: Mapping[str, Any], schema: Iterable[Feature], statistics: Mapping[str, Any]) -> str:
    """The text of `leaks.json`.

    Args:
        twins: The twins that were found before anything was written.
        now: The leaks that are there now, as `find_leaks` gives them.
        schema: The features of the data set.
        statistics: The contents of `statistics.json`.
    """
    fields = {"found": twins.to_json(), "now": now, "classes": class_shares(schema, statistics)}
    return to_checked_json(fields)


def class_shares(schema: Iterable[Feature], statistics: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Feature -> class -> split -> the share of it that the split has; of classes without an example nothing."""
    shares = {}
    for feature in schema:
        if feature.kind == "class_label":
            counts = {split: label_counts(statistics, split, feature.name) for split in statistics["splits"]}
            totals = {name: sum(of_split[name] for of_split in counts.values()) for name in feature.label_names}
            shares[feature.name] = {
                name: {split: one[name] / total for split, one in counts.items()} for name, total in totals.items() if total
            }
    return shares
