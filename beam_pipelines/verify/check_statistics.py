"""Compares `statistics.json` with statistics that are recomputed from the records."""

import json
import math
from typing import Any, Iterator, Mapping

from beam_pipelines.verify.corruption import Corruption
from beam_pipelines.verify.recount import DECODED, EXACT
from tf_input.dataset_format import STATISTICS

# Accepted differences for pixels from a JPEG or WebP: the absolute difference of a channel's mean, and the relative
# difference of its variance. Decoders differ slightly between versions. Lossy encoding changes the variance
# arbitrarily.
_TOLERANCES = {DECODED: (1.0, 0.05)}
# The mean of a uniform image changes by up to 44 at quality 1, and by up to 14 at quality 10.
_REENCODED_MEAN, _REENCODED_MEAN_OF_ONE_IMAGE = 16.0, 48.0


def check_statistics(stored: Mapping[str, Any], recounted: Mapping[str, Any]) -> Iterator[Corruption]:
    """Yields an error for each value in `statistics.json` that differs from the recomputed value.

    Args:
        stored: The contents of `statistics.json`.
        recounted: The recomputed values, from `recount.count_all`.
    """
    counted = recounted["statistics"]
    splits = stored.get("splits") if isinstance(stored.get("splits"), dict) else {}
    stored_pixels = {name: split.get("pixels") for name, split in splits.items() if isinstance(split, dict)}
    has_pixels = any(pixels is not None for pixels in stored_pixels.values())
    for name, split in counted["splits"].items():
        if "pixels" in split and not has_pixels:  # Images were not decoded: `prepare --check=header`.
            del split["pixels"]
        elif split.get("pixels") is not None and isinstance(stored_pixels.get(name), dict):
            _accept_rounding(stored_pixels[name], split["pixels"], recounted["precision"])
    for key, actual, expected in _differences(stored, counted, ""):
        yield Corruption(STATISTICS, f"{key} is {actual}, but the records have {expected}")


def _accept_rounding(stored: Mapping[str, Any], counted: dict[str, Any], precision: int) -> None:
    """Replaces each recomputed mean and variance with the stored value if they are equal within the tolerance."""
    if precision == EXACT:
        return
    more = (_REENCODED_MEAN_OF_ONE_IMAGE - _REENCODED_MEAN) / math.sqrt(counted["num_images"])
    mean, variance = _TOLERANCES.get(precision, (_REENCODED_MEAN + more, float("inf")))
    for name, absolute, relative in (("mean", mean, 0), ("variance", 1, variance)):
        values, expected = stored.get(name), counted[name]
        if not isinstance(values, list) or len(values) != len(expected):
            continue
        limits = [absolute + relative * value for value in expected]
        if all(isinstance(value, (int, float)) for value in values) and all(
            abs(value - other) <= limit for value, other, limit in zip(values, expected, limits)
        ):
            counted[name] = values


def _differences(stored: Any, counted: Any, key: str) -> Iterator[tuple[str, str, str]]:
    """Yields the key, the stored value and the recomputed value of each differing statistic, as strings."""
    if isinstance(counted, dict) and isinstance(stored, dict):
        names = list(counted)
        # Objects that contain only counts are compared completely. Other objects can have fields that are not
        # recomputed.
        if all(isinstance(value, int) for value in counted.values()):
            names += [name for name in stored if name not in counted]
        for name in names:
            inner = f"{key}.{name}" if key else name
            if name not in stored or name not in counted:
                yield inner, *(_shown(values[name]) if name in values else "no value" for values in (stored, counted))
            else:
                yield from _differences(stored[name], counted[name], inner)
    elif stored != counted or isinstance(stored, bool) != isinstance(counted, bool):
        yield key, _shown(stored), _shown(counted)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."
