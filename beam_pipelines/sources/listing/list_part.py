"""Lists the inputs of one part of a source, and collects facts about the inputs."""

import itertools
from typing import Callable, Collection, Iterator

from beam_pipelines.elements.class_tables import OBJECT_LABEL
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord, image_bytes
from beam_pipelines.features.kinds import KINDS
from beam_pipelines.sources.listing.first_layout import ARRAY_ENDS
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.source import Source, other_images
from tf_input.dataset_format import LABEL, MAX_CATALOG_TEXT_BYTES, OBJECTS

# The number of inputs that are processed together.
BATCH_IMAGES = 4096

_Collector = tuple[str, Callable[[InputRecord], Collection[str]] | None]


def list_part(source: Source, part: str, facts: ListedFacts) -> Iterator[list[InputRecord] | DeadLetter]:
    """Lists one part of a source, yields its inputs in batches of `BATCH_IMAGES`, and records facts in `facts`."""
    source.num_ignored, source.noted = 0, {}
    collect, others = label_collectors(source), other_images(source)
    texts = [feature.name for feature in source.features if feature.kind == "text" and not feature.shape]
    # Positions that belong to objects are left out, because their unit is checked with the boxes of the objects.
    with_positions = [feature for feature in source.features if feature.kind in KINDS and not feature.name.startswith(f"{OBJECTS}/")]
    for feature, _ in collect:
        facts.schema.labels.setdefault(feature, set())
    inputs = source.list(part)
    while listed := list(itertools.islice(inputs, BATCH_IMAGES)):
        rejected = [item for item in listed if isinstance(item, DeadLetter)]
        if rejected:
            facts.problems.add(rejected)
        yield from rejected
        images = [element for element in listed if not isinstance(element, DeadLetter)] if rejected else listed
        if images:
            _collect_facts(facts, images, collect, others)
            for feature in with_positions:
                facts.problems.add_positions(feature.name, KINDS[feature.kind].listed_facts([image.values[feature.name] for image in images]))
            facts.schema.long_texts.update(
                name for name in texts if name not in facts.schema.long_texts and any(_is_long(image.values[name]) for image in images)
            )
            yield images
    facts.counts.num_ignored += source.num_ignored
    facts.schema.add_known(source.label_names())
    facts.problems.noted = source.noted
    facts.problems.unexpected_files = source.unexpected_files
    if source.unused_fields:
        facts.schema.unused_fields.merge(source.unused_fields)
    facts.schema.group_names |= source.group_names
    if source.boxes:
        facts.problems.boxes.merge(source.boxes.take())
    for feature in source.found_features:
        facts.schema.found_features.setdefault(feature.name, set()).add(feature)


def _is_long(text: str) -> bool:
    return len(text) > MAX_CATALOG_TEXT_BYTES or (not text.isascii() and len(text.encode()) > MAX_CATALOG_TEXT_BYTES)


def _collect_facts(facts: ListedFacts, batch: list[InputRecord], collect: list[_Collector], others: tuple[str, ...]) -> None:
    columns = InputRecord(*zip(*batch))
    facts.counts.num_images += len(batch)
    sizes = [image_bytes(image, others) for image in batch] if others else columns.num_bytes
    facts.counts.num_bytes += sum(sizes)
    facts.counts.num_unsized += sizes.count(0)
    facts.splits.add(columns.split)
    facts.schema.add_raws(set(columns.raw))
    facts.schema.add_arrays([path for path, raw in zip(columns.path, columns.raw) if raw is None and path.endswith(ARRAY_ENDS)])
    for feature, names in collect:
        if names is None:
            facts.schema.labels[feature].update(columns.label)
            continue
        for image in batch:
            labels = names(image)
            facts.schema.labels[feature].update(labels)
            if len(labels) > 1:
                facts.schema.several_labels.add(feature)


def label_collectors(source: Source) -> list[_Collector]:
    """Returns pairs of a class feature and a function from an input to its class names. For the feature `label`, None
    replaces the function."""
    collectors = []
    for feature in source.features:
        if feature.kind != "class_label":
            continue
        if feature.name == LABEL and not feature.shape:
            collectors.append((LABEL, None))
        elif feature.name == OBJECT_LABEL:
            collectors.append((OBJECT_LABEL, lambda image: image.values[OBJECTS].labels))
        elif feature.shape:
            collectors.append((feature.name, lambda image, name=feature.name: image.values[name]))
        else:
            collectors.append((feature.name, lambda image, name=feature.name: (image.values[name],)))
    return collectors
