"""Reads the tasks in Label Studio's JSON and JSON-MIN exports."""

import posixpath
import re
import urllib.parse
from typing import Any, Iterator, Mapping, NamedTuple

from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.annotations.json_stream import open_json, read_entries
from beam_pipelines.sources.cells.cells import shown

_MAX_DEPTH = 10  # task, annotations, annotation, result, result, value, points, point
_MAX_FOLDERS = 8
_LABELS = "labels"
_UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-")
_MIN_FIELDS = frozenset(("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time"))
_EXTENSIONS = tuple(IMAGE_EXTENSIONS)


class Task(NamedTuple):
    """A task, which is an image with the results of one annotation.

    Attributes:
        names: The possible names of the image file, the most specific name first. Empty if the task was already read
            with another annotation.
        regions: The shapes that were drawn, each with its value and type.
        classes: A mapping from the name of a labeling control to the chosen classes.
        others: The names of unused parts of the task.
        problem: The reason why the task is invalid, or None.
        has_more: Whether the task has additional annotations, which are not used.
    """

    names: list[str]
    regions: list[Mapping[str, Any]] = []
    classes: Mapping[str, list[Any]] = {}
    others: frozenset[str] = frozenset()
    problem: InvalidInput | None = None
    has_more: bool = False


def read_tasks(path: str, name: str) -> Iterator[Task]:
    """Yields the tasks of an export.

    Args:
        path: The path of the file.
        name: The name of the file, for messages.

    Raises:
        UserError: The file is not a JSON list.
    """
    with open_json(path, name) as events:
        event, _ = next(events)
        if event != "start_array":
            raise UserError(f"{printable(name)}: not a JSON list of tasks. Export the project as JSON or JSON-MIN.")
        last_id, has_more = None, False
        for number, entry in read_entries(events, event, _MAX_DEPTH):
            if not isinstance(entry, dict):
                problem = InvalidInput("bad_annotation", f"the task is {shown(entry)}; it must be an object")
                yield Task([f"task {number}"], problem=problem)
                continue
            is_complete = "annotations" in entry or "data" in entry
            if not is_complete and entry.get("id") is not None and entry.get("id") == last_id:
                yield Task([], has_more=not has_more)  # JSON-MIN has one row per annotation.
                has_more = True
                continue
            has_more, last_id = False, entry.get("id")
            try:
                yield _read_task(entry) if is_complete else _read_row(entry)
            except InvalidInput as error:
                yield Task([f"task {shown(entry.get('id', number))}"], problem=error)


def _read_task(entry: Mapping[str, Any]) -> Task:
    data = entry.get("data")
    names = image_names(data[_image_field(data)]) if isinstance(data, dict) else []
    if not names:
        raise InvalidInput("bad_annotation", f"'data' is {shown(data)}; it must contain the path of an image")
    annotations = entry.get("annotations")
    items = annotations if isinstance(annotations, list) else ()
    valid = [item for item in items if isinstance(item, dict) and not item.get("was_cancelled")]
    if not valid or not isinstance(valid[0].get("result"), list):
        return Task(names, problem=InvalidInput("no_annotation", "the task has no annotation, or only cancelled annotations"))
    regions, classes, others = [], {}, set()
    for result in valid[0]["result"]:
        if not isinstance(result, dict):
            return Task(names, problem=InvalidInput("bad_annotation", f"a result is {shown(result)}; it must be an object"))
        value, kind = result.get("value"), str(result.get("type", "")).lower()
        if isinstance(value, dict) and kind.endswith(_LABELS):
            sides = {side: result.get(side) for side in ("original_height", "original_width", "image_rotation")}
            regions.append({**value, **sides, "type": kind})
        elif isinstance(value, dict) and kind == "choices" and isinstance(value.get("choices"), list) and "x" not in value:
            classes.setdefault(str(result.get("from_name")), []).extend(value["choices"])
        else:
            others.add(f"results of type {kind}")
    return Task(names, regions, classes, frozenset(others), has_more=len(valid) > 1)


def _read_row(entry: Mapping[str, Any]) -> Task:
    """Reads a row of JSON-MIN, which maps the name of each labeling control to its results."""
    image = _image_field(entry)
    regions, classes, others = [], {}, set()
    for name, value in entry.items():
        if name in _MIN_FIELDS or name == image or value is None:
            continue
        values = value.get("choices") if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if isinstance(values, list) and values and all(isinstance(item, str) for item in values):
            classes[name] = values
        elif isinstance(values, list):
            found = [{**item, "type": _kind_of(item)} for item in values if isinstance(item, dict) and _kind_of(item)]
            regions += found
            others.update([name] if len(found) < len(values) else [])
        else:
            others.add(name)
    return Task(image_names(entry[image]), regions, classes, frozenset(others))


def _kind_of(value: Mapping[str, Any]) -> str:
    return next((field for field in value if field.endswith(_LABELS)), "")


def _image_field(data: Mapping[str, Any]) -> str:
    """Returns the name of the field that contains the path of the image."""
    for field in ("image", *data):
        path = data.get(field)
        if isinstance(path, str) and (field == "image" or urllib.parse.urlsplit(path[:4096]).path.lower().endswith(_EXTENSIONS)):
            return field
    raise InvalidInput("bad_annotation", f"the task has the data {shown(dict(data))}; it must contain the path of an image")


def image_names(path: str) -> list[str]:
    """Returns the possible names of an image, given its path or URL in a task. The most specific name is first.

    Label Studio adds a prefix of 8 hexadecimal digits to uploaded files, which the original files usually lack.

    Raises:
        InvalidInput: The task contains the image itself instead of a path.
    """
    if path.startswith("data:"):
        raise InvalidInput("bad_annotation", "the image is embedded in the task; save it as a file, and name the file")
    try:
        link = urllib.parse.urlsplit(path)
        local = urllib.parse.parse_qs(link.query).get("d", [""])[0]
        name = local or urllib.parse.unquote(link.path if link.scheme or path.startswith("/data/") else path)
    except ValueError:
        name = path
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    base = parts[-1] if parts else ""
    plain = _UPLOAD_PREFIX.sub("", base, count=1) if _UPLOAD_PREFIX.match(base) else ""
    nested = [posixpath.join(*parts[start:]) for start in range(max(0, len(parts) - _MAX_FOLDERS), len(parts))]
    return [*nested, *([plain] if plain else [])]
