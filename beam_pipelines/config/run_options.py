"""Compares the options of two runs and converts options to JSON values and command-line strings."""

import dataclasses
import os
from typing import Any, Iterator, Mapping

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.errors import printable

# A resumed run may change these fields: the output, detected values, the report and the limit for dead letters.
_RESOLVED = {field.name for field in dataclasses.fields(PrepareJob)} - {field.name for field in dataclasses.fields(PrepareConfig)}
FREE = {"output", "max_bad_fraction", "has_report", *_RESOLVED}

# These fields are locations or names, and do not influence the examples.
_PATH_FIELDS = {"input", "name", "splits_from", "source.image_root", "source.image_folders", "source.first_label_names"}

# The options of those fields of `PrepareConfig` that have another name than the option.
OPTION_OF = {
    "shard_bytes": "shard_size",
    "descriptions": "describe",
    "source.kind": "source",
    "source.image_folders": "image_root",
    "source.image_root": "image_root",
    "source.defaults": "default",
    "source.labels": "label",
    "source.features": "feature",
    "source.has_images": "image",
    "source.label_names_of": "label_names",
    "source.first_label_names": "label_names_from",
    "source.has_masks": "masks",
    "images.size": "image_size",
    "images.format": "image_format",
    "images.encoding": "image_encoding",
}
_MAX_SHOWN = 80


def plain_options(config: Any) -> dict[str, Any]:
    """Converts the fields of a configuration to JSON values."""
    return {name: plain(value) for name, value in vars(config).items()}


def plain(value: Any) -> Any:
    """Converts a field's value to a JSON value."""
    if isinstance(value, (int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Column):
        inside = [value.dtype] * bool(value.dtype) + [str(side) if side else "?" * (value.kind == "tensor") for side in value.shape]
        shape = f"[{','.join(inside)}]" if inside else ""  # "[]" for a list of any length
        return plain(f"{value.name}={','.join(value.names)}:{value.kind}{shape}")
    if isinstance(value, SourceKind):
        return value.name
    if dataclasses.is_dataclass(value):
        return plain_options(value)
    return os.fsencode(str(value)).decode("utf-8", "backslashreplace")  # A path can contain any bytes.


def find_differences(earlier: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Returns a description of each option that differs between two runs.

    Args:
        earlier: The options of the run to resume, as JSON values.
        here: The options of the current command, as JSON values.
    """
    old, new = dict(_texts(earlier)), dict(_texts(here))
    differences = []
    for field in [*new, *(field for field in old if field not in new)]:
        if old.get(field) != new.get(field):
            option = _option(field)
            differences.append(
                f"{_show(option, new.get(field), 'is not given')}, but the earlier run has {_show(option, old.get(field), '')}"
            )
    return differences


def given_options(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the names and values of `prepare` options that differ from their defaults, as command-line strings.

    Options that only contain locations or names are omitted.

    Args:
        options: The options as JSON values.
    """
    defaults = dict(_texts(plain_options(PrepareConfig(input="", output="", name="any"))))
    given = ((field, text) for field, text in _texts(options) if field not in _PATH_FIELDS and text not in (None, defaults.get(field)))
    return [(_option(field), text) for field, text in given]


def _texts(options: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yields each configuration field, and its value as a command-line string or None."""
    for name, value in options.items():
        if name == "images":  # The option --image_format combines two fields.
            quality = f":{value['quality']}" if value["format"] in ("jpeg", "webp") else ""
            value = {
                "size": value["size"],
                "format": f"{value['format']}{quality}",
                "encoding": value["encoding"],
                "keep_depth": value["keep_depth"],
            }
        if name in ("source", "images"):
            yield from ((f"{name}.{inner}", _text(inner, item)) for inner, item in value.items())
        elif name not in FREE:
            yield name, _text(name, value)


def _text(field: str, value: Any) -> str | None:
    if field == "has_images" and isinstance(value, bool):
        return None if value else "none"
    if value is None or value == {} or (value == [] and field != "labels") or (value is False and field != "split_folders"):
        return None
    match value:
        case bool():
            return "yes" if value else "no"
        case []:
            return "none"
        case "":
            return "''"
        case ["exact", height, width]:
            return f"exact={height}x{width}"
        case [kind, number] if field == "size":
            return f"{kind}={number}"
        case dict():
            return ",".join(f"{name}={','.join(item) if isinstance(item, list) else item}" for name, item in value.items())
        case list():
            return ("," if field in ("stratify", "divide", "column_names", "pixel_shape") else " ").join(map(str, value))
    return str(value)


def _option(field: str) -> str:
    return f"--{OPTION_OF.get(field, field.rpartition('.')[2])}"


def _show(option: str, text: str | None, missing: str) -> str:
    if text is None:
        return f"{option} {missing}" if missing else f"no {option}"
    shown = printable(text)
    return f"{option}={shown[:_MAX_SHOWN]}…" if len(shown) > _MAX_SHOWN else f"{option}={shown}"
