"""Writes `croissant.json`, which describes the dataset for search engines (http://mlcommons.org/croissant/1.0).

The file describes the shards as a set of files, and the examples as rows of the catalog files. Identical runs
produce identical files, because the description depends only on the manifest.
"""

from typing import Any, Iterator

from tf_input.dataset_format import CATALOG_COLUMNS, Manifest, catalog_features
from tf_input.stored_kinds import FEATURE_KINDS

_TERMS = """
    citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes
    isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate
    separator source subField transform
"""
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_TYPES = {"bytes": "sc:Text", "int64": "sc:Integer", "float": "sc:Float"}


def describe_dataset(manifest: Manifest) -> dict[str, Any]:
    """Returns the contents of `croissant.json` as a dictionary."""
    about = manifest.about
    num_examples = sum(map(manifest.num_examples, manifest.splits))
    has_catalog = any(info.catalog for infos in manifest.splits.values() for info in infos)
    fields = {
        "@context": dict(sorted(_CONTEXT.items())),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": manifest.name,
        "description": about.get("description", f"{num_examples} examples of {', '.join(feature.name for feature in manifest.schema)}"),
        "license": about.get("license"),
        "citeAs": about.get("citation"),
        "url": about["source"] if about.get("source", "").startswith(("http://", "https://")) else None,
        "distribution": [*_file_sets(manifest, has_catalog)],
        "recordSet": [_splits(manifest), _examples(manifest)] if has_catalog else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _file_sets(manifest: Manifest, has_catalog: bool) -> Iterator[dict[str, Any]]:
    names = f"{manifest.name}-*.tfrecord-*"
    yield _file_set("shards", "The examples as tf.train.Example protocol buffers in TFRecord files.", "application/x-tfrecord", names)
    if has_catalog:
        yield _file_set("catalog", "One row per example, in the order of the records.", "application/x-parquet", "catalog/*.parquet")


def _file_set(name: str, description: str, encoding: str, includes: str) -> dict[str, Any]:
    return {"@type": "cr:FileSet", "@id": name, "name": name, "description": description, "encodingFormat": encoding, "includes": includes}


def _splits(manifest: Manifest) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": "splits",
        "name": "splits",
        "dataType": "cr:Split",
        "key": {"@id": "splits/name"},
        "field": [{"@type": "cr:Field", "@id": "splits/name", "name": "name", "dataType": "sc:Text"}],
        "data": [{"splits/name": split} for split in manifest.splits],
    }


def _examples(manifest: Manifest) -> dict[str, Any]:
    by_name = {"extract": {"fileProperty": "filename"}, "transform": {"regex": _split_pattern(manifest)}}
    split = {
        "source": {"fileSet": {"@id": "catalog"}, **by_name},
        "references": {"field": {"@id": "splits/name"}},
    }
    features = catalog_features(manifest.schema)
    types = {column: _TYPES["bytes" if item.is_categorical else item.storage] for column, item in features.items()}
    return {
        "@type": "cr:RecordSet",
        "@id": "examples",
        "name": "examples",
        "description": "The values of each example in the catalog. Classes are given by name.",
        "key": {"@id": "examples/key"},
        "field": [
            {"@type": "cr:Field", "@id": "examples/split", "name": "split", "dataType": "sc:Text", **split},
            *(_field(name, _TYPES[FEATURE_KINDS[kind].storage], False, "") for name, kind in CATALOG_COLUMNS.items() if name not in features),
            *(_field(column, types[column], bool(entry.shape), entry.description) for column, entry in features.items()),
        ],
    }


def _split_pattern(manifest: Manifest) -> str:
    """Returns a regular expression that extracts the split name from the name of a catalog file."""
    return f"^(?:{manifest.name}-)?({'|'.join(manifest.splits)})(?:-[0-9].+)?$"


def _field(name: str, data_type: str, is_list: bool, description: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"@type": "cr:Field", "@id": f"examples/{name}", "name": name}
    if description:
        fields["description"] = description
    fields |= {"dataType": data_type, "source": {"fileSet": {"@id": "catalog"}, "extract": {"column": name}}}
    return fields | ({"repeated": True} if is_list else {})
