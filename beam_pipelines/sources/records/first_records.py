"""What the first records tell of all: which features there are, and what objects look like. Writers leave out what has no value."""

import itertools
from typing import Iterable

from beam_pipelines.errors import UserError
from beam_pipelines.sources.records.record_layouts import Layout
from beam_pipelines.tfrecord.example_reader import ExampleReader

# That are looked at for a layout: either is enough, as in tf_input.
_FIRST_RECORDS, _FIRST_BYTES = 64, 32 << 20
# How far records are read for one that has an object.
_MAX_OBJECT_RECORDS = 100


def find_kinds(examples: Iterable[ExampleReader]) -> tuple[dict[str, str], str]:
    """The features of the first records, name -> kind (empty where none has a value), and how a message calls these records."""
    kinds: dict[str, str] = {}
    num_records = num_bytes = 0
    for example in examples:
        for name, feature in example.features.items():
            kinds[name] = kinds.get(name) or feature.kind
        num_records, num_bytes = num_records + 1, num_bytes + example.num_bytes
        if num_records == _FIRST_RECORDS or num_bytes >= _FIRST_BYTES:
            break
    return kinds, f"the first {num_records:,} records"


def find_objects(examples: Iterable[ExampleReader], layout: Layout, path: str) -> ExampleReader | None:
    """The first record with an object that has a class; None if none of the first has an object.

    Args:
        examples: The first records.
        layout: Of theirs, with objects.
        path: Of the first file, for a message.

    Raises:
        UserError: There are objects, and no class of one.
    """
    has_boxes = False
    for example in itertools.islice(examples, _MAX_OBJECT_RECORDS):
        if example.values(layout.objects.boxes[0]):
            has_boxes = True
            if any(map(example.values, layout.objects.labels)):
                return example
    if has_boxes:
        raise UserError(
            f"{path}: layout {layout.name}: the first records have boxes, and no class of one in "
            f"{' or '.join(layout.objects.labels)}; expected --label none, which keeps the images alone"
        )
    return None
