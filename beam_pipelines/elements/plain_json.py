"""Converts dataclasses and plain values to JSON and back without loss.

Only the dataclasses that this module lists can be decoded.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

from beam_pipelines.columns.column import Column
from beam_pipelines.config.image_config import ImageConfig
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.coordinate_facts import CoordinateFacts
from beam_pipelines.elements.dead_letters import DeadLetter, DeadLetterCount
from beam_pipelines.elements.division import Division, Excess
from beam_pipelines.elements.label_conflicts import Conflict, Conflicts
from beam_pipelines.elements.listing import Listing
from beam_pipelines.elements.plan import Plan, ShardAddress, SplitShards, WrittenShard
from beam_pipelines.elements.quality import LabelSequence
from beam_pipelines.elements.reference_runs import SpoolRange
from beam_pipelines.elements.statistics import ImageFacts, ImageStatistics, Range, SplitStatistics
from beam_pipelines.elements.tensor_sums import TensorSums
from beam_pipelines.elements.near_duplicates import NearDuplicates
from tf_input.dataset_format import Feature, ShardInfo

_CLASSES = {
    kind.__name__: kind
    for kind in (
        *(Column, Conflict, Conflicts, DeadLetter, DeadLetterCount, Division, Excess, Feature, ImageConfig, ImageFacts, ImageStatistics),
        *(CoordinateFacts, LabelSequence, Listing),
        *(PrepareOptions, Range, ShardAddress, ShardInfo, SourceConfig, SourceKind, SplitShards, SplitStatistics, SpoolRange, TensorSums, NearDuplicates),
        WrittenShard,
        Plan,
    )
}
_MADE_OF_ITEMS = {
    "Counter": lambda items: Counter(dict(items)),
    "Fraction": lambda texts: Fraction(*texts),
    "dict": dict,
    "frozenset": frozenset,
    "list": list,
}

Value = TypeVar("Value")


def dumps(value: Any) -> bytes:
    """Encodes numbers, strings, None, and sequences, mappings or dataclasses of such values as JSON in UTF-8."""
    return json.dumps(_encode(value), allow_nan=False).encode()


def loads(data: bytes, kind: type[Value]) -> Value:
    """Decodes JSON that was encoded by `dumps`.

    Args:
        data: The JSON in UTF-8.
        kind: The expected class of the decoded value.

    Raises:
        ValueError: The data does not encode a value of that class.
    """
    try:
        value = _decode(json.loads(data))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or invalid: {error!r}") from error
    if not isinstance(value, kind):
        raise ValueError(f"invalid value: {type(value).__name__} instead of {kind.__name__}")
    return value


def _encode(value: Any) -> Any:
    kind = type(value).__name__
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Fraction():
            return {"": kind, "items": [str(value)]}
        case Counter():
            return {"": kind, "items": [[_encode(key), element] for key, element in value.items()]}
        case Mapping():
            return {"": "dict", "items": [[_encode(key), _encode(member)] for key, member in value.items()]}
        case frozenset() | set():
            return {"": "frozenset", "items": sorted(map(_encode, value))}
        case _ if dataclasses.is_dataclass(value):
            return {"": kind, "fields": {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}}
        case tuple() if hasattr(value, "_fields"):
            return {"": kind, "fields": {name: _encode(getattr(value, name)) for name in value._fields}}
        case tuple():
            return [_encode(item) for item in value]
        case list():
            return {"": kind, "items": [_encode(entry) for entry in value]}
    raise TypeError(f"{kind} is not a plain value")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decode, value))
    if not isinstance(value, dict):
        return value
    if "items" in value:
        return _MADE_OF_ITEMS[value[""]](_decode(value["items"]))
    return _CLASSES[value[""]](**{name: _decode(item) for name, item in value["fields"].items()})
