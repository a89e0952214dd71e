"""Lists the inputs of one part of a source and collects facts about the inputs."""

import itertools
from typing import Iterator

from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord, image_bytes
from beam_pipelines.features.kinds import kind_of
from beam_pipelines.sources.files.sizes import add_sizes
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.source import Source, class_name_reader, other_images
from tf_input.dataset_format import MAX_CATALOG_TEXT_BYTES

# Endings of the names of files that may contain arrays.
_ARRAY_ENDS = (".npy", ".NPY", ".tif", ".TIF", ".tiff", ".TIFF")

# The number of inputs that are processed together.
BATCH_IMAGES = 4096


def list_part(
    source: Source, part: str, facts: ListedFacts, with_sizes: bool = False
) -> Iterator[list[InputRecord] | DeadLetter]:
    """Lists one part of a source, yields its inputs in batches of `BATCH_IMAGES`, and records facts in `facts`. With
    `with_sizes`, also looks up the sizes of image files."""
    source.num_ignored, source.noted = 0, {}
    facts.schema.labels |= {feature.name: set() for feature in source.features if feature.is_categorical}
    inputs = source.name_labels.add(source.list(part)) if source.name_labels else source.list(part)
    if with_sizes:
        inputs = add_sizes(inputs, source.root, other_images(source))
    while listed := list(itertools.islice(inputs, BATCH_IMAGES)):
        rejected = [item for item in listed if isinstance(item, DeadLetter)]
        if rejected:
            facts.problems.add(rejected)
        yield from rejected
        images = [item for item in listed if not isinstance(item, DeadLetter)] if rejected else listed
        if images:
            _add_facts(facts, images, source)
            yield images
    facts.counts.num_ignored += source.num_ignored
    facts.schema.add_known({**source.label_names(), **(source.name_labels.label_names if source.name_labels else {})})
    facts.problems.noted = source.noted
    facts.problems.unexpected_files = source.unexpected_files
    facts.schema.unused_fields.merge(source.unused_fields)
    facts.schema.point_labels |= source.point_labels
    facts.schema.group_names |= source.group_names
    facts.problems.boxes.merge(source.boxes.take())
    for feature in source.found_features:
        facts.schema.found_features.setdefault(feature.name, set()).add(feature)


def _add_facts(facts: ListedFacts, batch: list[InputRecord], source: Source) -> None:
    columns, others, schema = InputRecord(*zip(*batch)), other_images(source), facts.schema
    facts.counts.num_images += len(batch)
    sizes = [image_bytes(image, others) for image in batch] if others else columns.num_bytes
    facts.counts.num_bytes += sum(sizes)
    facts.counts.num_unsized += sizes.count(0)
    facts.splits.add(columns.split)
    schema.add_raws(set(columns.raw))
    schema.add_arrays([path for path, raw in zip(columns.path, columns.raw) if raw is None and path.endswith(_ARRAY_ENDS)])
    for feature in source.features:
        name = feature.name
        if feature.is_categorical:
            labels = list(map(class_name_reader(feature), batch))
            schema.labels[name].update(*labels)
            if any(len(names) > 1 for names in labels):
                schema.several_labels.add(name)
        # Positions that belong to objects are left out, because their unit is checked with the boxes of the objects.
        if feature.has_positions and not feature.is_of_objects:
            positions = kind_of(feature).listed_facts(image.values[name] for image in batch)
            facts.problems.positions.setdefault(name, type(positions)()).merge(positions)
        if feature.is_text and not feature.shape and name not in schema.long_texts:
            if any(_is_long(image.values[name]) for image in batch):
                schema.long_texts.add(name)


def _is_long(text: str) -> bool:
    return len(text) > MAX_CATALOG_TEXT_BYTES or (not text.isascii() and len(text.encode()) > MAX_CATALOG_TEXT_BYTES)
