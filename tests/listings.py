"""Creates listings and schemas of class folders for unit tests."""

from typing import Any

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.listing import Listing
from tf_input.dataset_format import Feature


def make_schema(*label_names: str, has_sizes: bool = True) -> tuple[Feature, ...]:
    """Returns the schema of a dataset of images with one class label each."""
    features = [Feature("image", "image"), Feature("key", "text"), Feature("label", "class_label", (), label_names)]
    if has_sizes:
        features += [Feature("height", "integer"), Feature("width", "integer")]
    return tuple(sorted(features, key=lambda feature: feature.name))


def make_listing(*label_names: str, **fields: Any) -> Listing:
    """Returns the listing of a source with the given classes and one split. `fields` override the defaults."""
    defaults: dict[str, Any] = {
        "source": "image_folder",
        "root": "in",
        "schema": make_schema(*label_names),
        "targets": ("label",),
        "listed_labels": {"label": frozenset(label_names)},
        "splits": ("train",),
        "fractions": None,
        "num_inputs": 0,
        "num_bytes": 0,
        "reference_bytes": 0,
        "num_ignored": 0,
        "dead_letters": DeadLetterCount(),
    }
    return Listing(**{**defaults, **fields})
