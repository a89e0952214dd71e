"""`leaks.json`, the certificate: what was found, what is there now, and how the classes are shared out."""

import zlib
from typing import Any, Iterable, Mapping

from beam_pipelines.elements.twins import Twins
from beam_pipelines.publish.summary import label_counts
from tf_input.dataset_format import Feature, to_json


def encode_leaks(twins: Twins, now: Mapping[str, Any], schema: Iterable[Feature], statistics: Mapping[str, Any]) -> str:
    """The text of `leaks.json`.

    Args:
        twins: The twins that were found before anything was written.
        now: The leaks that are there now, as `find_leaks` gives them.
        schema: The features of the data set.
        statistics: The contents of `statistics.json`.
    """
    fields = {"found": twins.to_json(), "now": now, "classes": class_shares(schema, statistics)}
    return to_json({**fields, "checksum": _checksum(fields)})


def is_as_written(fields: Mapping[str, Any]) -> bool:
    """Whether what was read of `leaks.json` has the checksum of its other fields: nothing else would tell of a figure that has changed."""
    others = {name: value for name, value in fields.items() if name != "checksum"}
    try:
        return fields.get("checksum") == _checksum(others)
    except ValueError:  # not a number, or half of a pair of surrogates: none is ever written
        return False


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(to_json(fields).encode())


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
