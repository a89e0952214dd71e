"""Converts TensorFlow Datasets' `features.json` and `dataset_info.json` to a layout."""

from typing import Any, Iterator, Mapping

from beam_pipelines.columns.column import Column
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.errors import UserError
from beam_pipelines.sources.files.settings_files import read_class_list
from beam_pipelines.sources.formats.tfrecord.record_layouts import Layout, ObjectsLayout
from beam_pipelines.storage.files import files_at
from tf_input.dataset_format import FEATURES, LABEL, OBJECTS, label_file_name

_MAX_DEPTH = 20


def flatten(feature: dict[str, Any], name: str = "", depth: int = 0) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """Yields the name of each nested feature, with its kind and description. Kinds in sequences end with "*"."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} levels of nested features")
    kind = feature["pythonClassName"].rpartition(".")[2]
    if kind == "FeaturesDict":
        for part, child in feature["featuresDict"]["features"].items():
            yield from flatten(child, f"{name}/{part}" if name else part, depth + 1)
    elif kind in ("Sequence", "Dataset"):
        for child, (child_kind, described) in flatten(feature["sequence"]["feature"], name, depth + 1):
            yield child, (f"{child_kind}*", described)
    else:
        yield name, (kind, feature)


def layout_of_tfds(folder: str, info: dict[str, Any], tfds_features: Mapping[str, tuple[str, dict[str, Any]]]) -> Layout:
    """Returns the layout of a TensorFlow Datasets dataset. Raises `UserError` if several features could be the
    image."""
    supervised = {key for item in _supervised_items(info) if isinstance(key := item.get("featureKey"), str)}
    image = _only(tfds_features, "Image", supervised)
    if image is None and any(kind.startswith("Image") for kind, _ in tfds_features.values()):
        raise UserError(
            f"{folder}: {FEATURES} has several images, and supervisedKeys names none of them. Choose one with --layout=image=NAME."
        )
    objects = _objects_of(tfds_features)
    columns = ()
    if objects:
        columns = (Column(OBJECTS, (OBJECTS,)),)
    elif name := _only(tfds_features, "ClassLabel", supervised):
        columns = (Column(LABEL, (name,)),)
    elif name := _only(tfds_features, "ClassLabel*", supervised):
        columns = (Column(LABEL, (name,), "multi_label"),)
    names = {
        name: names
        for name, (kind, _) in tfds_features.items()
        if kind.startswith("ClassLabel") and (names := _read_names(folder, name))
    }
    return Layout("tfds", image or "", objects=objects, labels=columns or None, class_names=names, shapes=dict(_shapes(tfds_features)))


def _shapes(tfds_features: Mapping[str, tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and shape of each tensor of known shape."""
    for name, (kind, described) in tfds_features.items():
        sides = ((described.get("tensor") or {}).get("shape") or {}).get("dimensions", [])
        if kind == "Tensor" and sides and all(str(side).isdecimal() and int(side) for side in sides):
            yield name, tuple(map(int, sides))


def _supervised_items(info: dict[str, Any]) -> list[dict[str, Any]]:
    items = info.get("supervisedKeys") or {}
    items = items.get("tuple", {}).get("items", []) if isinstance(items, dict) else []
    return [item for item in items if isinstance(item, dict)]


def _only(tfds_features: Mapping[str, tuple[str, dict[str, Any]]], wanted: str, supervised: set[str]) -> str | None:
    names = [name for name, (kind, _) in tfds_features.items() if kind == wanted]
    preferred = [name for name in names if name in supervised] or [name for name in names if name in ("image", LABEL)] or names
    return preferred[0] if len(preferred) == 1 else None


def _objects_of(tfds_features: Mapping[str, tuple[str, dict[str, Any]]]) -> ObjectsLayout | None:
    """Returns the layout of the first sequence of objects with boxes and classes, or None if there is none."""
    for boxes, (kind, described) in tfds_features.items():
        parent = boxes.rpartition("/")[0]
        if kind != "BBoxFeature*" or (described.get("boundingBox") or {}).get("bboxFormat", "REL_YXYX") != "REL_YXYX":
            continue
        siblings = {name: kind for name, (kind, _) in tfds_features.items() if name.startswith(f"{parent}/")}
        labels = [name for name, kind in siblings.items() if kind == "ClassLabel*"]
        if labels:
            label = f"{parent}/{LABEL}" if f"{parent}/{LABEL}" in labels else labels[0]
            flags = {name.removeprefix(f"{parent}/"): name for name in siblings if _is_flag(name, tfds_features)}
            return ObjectsLayout((boxes,), label, flags)
    return None


def _is_flag(name: str, tfds_features: Mapping[str, tuple[str, dict[str, Any]]]) -> bool:
    kind, described = tfds_features[name]
    dtype = (described.get("tensor") or {}).get("dtype")
    return kind in ("Tensor*", "Scalar*") and dtype == "bool" and bool(NAME_PATTERN.fullmatch(name.rpartition("/")[2]))


def _read_names(folder: str, feature: str) -> tuple[str, ...]:
    path = f"{folder}/{label_file_name(feature.replace('/', '-'))}"
    return read_class_list(path) if files_at(folder).exists(path) else ()
