"""The command `recordmill inspect`."""

import json
from typing import TYPE_CHECKING, Any, Mapping

from tf_input import overview
from tf_input.dataset_format import IMAGE, LABEL, OBJECTS
from tf_input.inspection.contents import Contents
from tf_input.inspection.examples import example_json, example_table, find_example, find_examples
from tf_input.options import suggest_option
from tf_input.overview import Table, printable
from tf_input.selection.catalog import Catalog
from tf_input.storage.open_files import open_manifest
from tf_input.storage.store import Store

if TYPE_CHECKING:
    import numpy as np

    from tf_input.dataset import PreparedDataset

_NUM_SHOWN = 20  # number of examples in a table


def run(directory: str, *, where: str | None, split: str | None, example: str | None, as_json: bool) -> None:
    """Prints the contents of a dataset, or selected examples.

    Args:
        directory: The directory of a dataset, or its URL.
        where: A condition for the examples to print, as in `batches(select=...)`.
        split: The split to search with `where`. None searches all splits.
        example: One example to print, with its image: SPLIT:NUMBER, or a key.
        as_json: Whether to print JSON.

    Raises:
        OSError, ImportError: The dataset can't be read, or a required package is missing.
        ValueError: The dataset is corrupt, or a requested example, split or column does not exist.
    """
    files, manifest, _ = open_manifest(directory)
    if example is not None:
        _print_example(directory, example, as_json)
        return
    if where is None:
        contents = Contents(directory, files, manifest)
        print(json.dumps(contents.to_json(), indent=1) if as_json else contents.describe())
        return
    if split is not None and split not in manifest.splits:
        raise ValueError(
            f"--split={split} does not exist. Choose one of {', '.join(manifest.splits)}{suggest_option(split, manifest.splits)}"
        )
    store = Store(directory, files, manifest)
    catalogs = {
        name: Catalog(directory, name, shards, manifest.features, store)
        for name, shards in manifest.splits.items()
        if split in (None, name)
    }
    _print_matches(where, catalogs, as_json)


def _print_matches(where: str, catalogs: dict[str, Catalog], as_json: bool) -> None:
    matches = {split: find_examples(where, catalog) for split, catalog in catalogs.items()}
    if as_json:
        print(json.dumps({"where": where, "splits": matches}, indent=1))
        return
    for split, rows in matches.items():
        print(f"{printable(split)}: {len(rows):,} of {catalogs[split].num_examples:,} examples")
        names = [name for name in (rows[0] if rows else ()) if any(row[name] not in (None, []) for row in rows)]
        if names:
            shown = [[_cell(row[name]) for name in names] for row in rows[:_NUM_SHOWN]]
            print("\n".join(overview.lines(Table([*map(printable, names)], shown, len(names)))))
        if len(rows) > _NUM_SHOWN:
            print(f"and {len(rows) - _NUM_SHOWN:,} more (--json prints all)")


def _print_example(directory: str, wanted: str, as_json: bool) -> None:
    import tf_input
    from tf_input.inspection.pictures import is_shown, save_image

    dataset = tf_input.open(directory)
    split, number, example = find_example(dataset, wanted)
    example = {"record": example} if isinstance(example, bytes) else example
    if as_json:
        print(json.dumps({"split": split, "number": number, **example_json(example)}, indent=1))
        return
    print(f"{printable(split)}:{number}")
    print("\n".join(overview.lines(example_table(dataset, example))))
    if is_shown(example.get(IMAGE)):
        print(save_image(_drawn(dataset, example), f"{dataset.manifest.name}-{split}-{number}"))


def _drawn(dataset: "PreparedDataset", example: Mapping[str, Any]) -> "np.ndarray":
    """Returns the image of an example with its boxes, masks and keypoints."""
    from tf_input.inspection.pictures import to_rgb

    features = dataset.features
    masks = [example[name] for name, feature in features.items() if feature.is_mask]
    objects = example[OBJECTS] if f"{OBJECTS}/bbox" in features else None
    positions = [(feature, _value_of(example, name)) for name, feature in features.items() if feature.has_positions]
    if not masks and objects is None and not positions:
        return example[IMAGE]
    from tf_input.inspection.drawings import draw_annotations

    label = features.get(f"{OBJECTS}/{LABEL}")
    return draw_annotations(to_rgb(example[IMAGE]), masks, objects, label.label_names if label else (), positions)


def _value_of(example: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a feature, which is nested for features of objects."""
    prefix, _, inner = name.partition("/")
    return example[OBJECTS][inner] if prefix == OBJECTS and inner else example[name]


def _cell(value: Any) -> str:
    return "" if value is None else printable(str(value))
