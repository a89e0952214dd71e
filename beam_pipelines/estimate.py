"""Estimates the output size and the duration of a `prepare` run before it starts (`--estimate`).

The durations are rough. They are based on rates that were measured on one core with all files in the page cache.
"""

import dataclasses
import math
from collections import Counter
from typing import Iterator, Sequence

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.run_paths import RunPaths
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import InputRecord, image_bytes
from beam_pipelines.elements.listing import Listing, empty_split, order_splits
from beam_pipelines.elements.split_hashes import SplitByGroup
from beam_pipelines.parallel.worker_processes import MAX_TASK_BYTES
from beam_pipelines.publish.summary import format_size
from beam_pipelines.shards.input_reader import InputReader
from beam_pipelines.shards.write_context import WriteContext, WriteSpec
from beam_pipelines.shuffle.ranks import BLOCK_REFERENCES, choose_num_shards
from beam_pipelines.sources.listing.groups_and_strata import GroupReader, StrataReader
from beam_pipelines.sources.listing.list_part import list_part
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.listing.make_listing import make_listing
from beam_pipelines.sources.open_source import open_source
from beam_pipelines.sources.source import other_images
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.spool import SpoolReader
from tf_input.cores import num_cores

CORES_PER_WORKER = 4

# Number of examples that are encoded to estimate their size, if they have no image.
_NUM_MEASURED = 64

# Number of inputs whose splits are computed together.
_BATCH_IMAGES = 4096

# Assumed size of an image if the listing does not contain sizes, for example for a table.
ASSUMED_BYTES = 128 << 10

# CPU seconds per image and per byte for listing, checking, shuffling and writing.
_CHECKED = (30e-6, 9.3e-9)
_UNCHECKED = (25e-6, 1.3e-9)
_HASHED = (25e-6, 1.4e-9)  # Additional time with --duplicates, for reading again and hashing. Decoding is not repeated.
_PER_REQUEST = 1.5e-3  # CPU seconds of the Python client for a request to an object store.

# Overhead per record (key, size, label, frame, index row, catalog row), and per reference in temporary files.
_RECORD_BYTES = 180
_REFERENCE_BYTES = 100

_BASE_MEMORY = 260 << 20
_REFERENCE_MEMORY = 400

_MINUTES_WANTED = 15
_MAX_WORKERS = 200


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimated output and duration of a run.

    Attributes:
        num_examples: A mapping from split to its number of examples.
        num_bytes: A mapping from split to the size of its source images in bytes. Without images, the size of the
            stored examples.
        num_shards: A mapping from split to its number of shards.
        num_classes: The number of class names of the feature with the most class names.
        num_dead_letters: The number of inputs that the listing rejects.
        core_seconds: The total CPU time in seconds, independent of the number of cores.
        is_kept: Whether images keep their size and format.
        has_images: Whether examples have an image.
        num_reads: The number of times that each image is read.
        has_sizes: Whether the listing contains the sizes of images. Otherwise, the size is assumed to be
            `ASSUMED_BYTES`.
        memory_bytes: The memory for annotation files that are read at the same time, in bytes.
    """

    num_examples: dict[str, int]
    num_bytes: dict[str, int]
    num_shards: dict[str, int]
    num_classes: int
    num_dead_letters: int
    core_seconds: float
    has_sizes: bool = True
    is_kept: bool = True
    has_images: bool = True
    num_reads: int = 1
    memory_bytes: int = 0

    @property
    def num_all(self) -> int:
        """The number of examples in all splits."""
        return sum(self.num_examples.values())

    @property
    def output_bytes(self) -> int:
        """The approximate size of the dataset, in bytes."""
        return sum(self.num_bytes.values()) + self.num_all * _RECORD_BYTES

    @property
    def plan_bytes(self) -> int:
        """The size of the temporary files that list the inputs, in bytes."""
        return self.num_all * _REFERENCE_BYTES

    @property
    def memory(self) -> int:
        """The memory of a local run, or of each worker process on a cluster, in bytes."""
        return _BASE_MEMORY + self.memory_bytes + min(self.num_all, BLOCK_REFERENCES) * _REFERENCE_MEMORY

    @property
    def num_workers(self) -> int:
        """The number of workers needed to complete the run in 15 minutes, not counting their startup time."""
        return min(_MAX_WORKERS, math.ceil(self.core_seconds / CORES_PER_WORKER / (60 * _MINUTES_WANTED)))


def make_estimate(options: PrepareOptions) -> Estimate:
    """Estimates a run by listing its inputs, without reading images.

    Args:
        options: The resolved configuration, with a known source kind.
    """
    num_examples: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    all_listed, first = ListedFacts(), []
    source = open_source(options)
    others = other_images(source)
    groups, strata = GroupReader(options), StrataReader(source.features, options)
    parts = source.parts()
    part_memory = [source.memory_bytes(part) for part in parts]
    for part in parts:
        in_part = ListedFacts()
        for listed in list_part(source, part, in_part, with_sizes=True):
            if isinstance(listed, DeadLetter):
                continue
            first += listed[: _NUM_MEASURED - len(first)]
            strata.read(listed, in_part)
            keys = [image.key.encode() for image in listed]
            for image, split in zip(listed, _splits(listed, groups.read(listed, keys, in_part) or keys, options)):
                num_examples[split] += 1
                num_bytes[split] += image_bytes(image, others)
        all_listed.merge(in_part)
    listing = make_listing(options, source, all_listed)
    for split in listing.splits:
        if split not in num_examples and not (options.stratify or options.splits_from):
            raise empty_split(split, num_examples.total(), listing.num_groups)
    num_examples = Counter({split: num_examples[split] for split in order_splits(listing.splits, num_examples) if split in num_examples})
    if not listing.has_images:
        example_bytes = _measure(first, listing, options)
        num_bytes = Counter({split: count * example_bytes for split, count in num_examples.items()})
    elif not all_listed.counts.num_bytes:
        num_bytes = Counter({split: count * ASSUMED_BYTES for split, count in num_examples.items()})
    per_image, per_byte = _UNCHECKED if options.check in ("header", "none") else _CHECKED
    num_reads = 2 if options.duplicates else 1
    if options.duplicates:
        per_image, per_byte = per_image + _HASHED[0], per_byte + _HASHED[1]
    num_requests = num_reads if is_remote(options.input) else 0
    return Estimate(
        num_examples=dict(num_examples),
        num_bytes=dict(num_bytes),
        num_shards=choose_num_shards(options.num_shards, options.shard_bytes, num_examples, num_bytes),
        num_classes=max((len(feature.label_names) for feature in listing.schema), default=0),
        num_dead_letters=all_listed.problems.dead_letters.num,
        core_seconds=num_examples.total() * (per_image + num_requests * _PER_REQUEST) + num_bytes.total() * per_byte,
        has_sizes=bool(all_listed.counts.num_bytes) or not listing.has_images,
        has_images=listing.has_images,
        num_reads=num_reads,
        memory_bytes=max(*part_memory, min(sum(part_memory), MAX_TASK_BYTES)),
        is_kept=options.images.size is None and options.images.format == "keep",
    )


def _measure(examples: Sequence[InputRecord], listing: Listing, options: PrepareOptions) -> int:
    """Returns the mean encoded size of a few examples without images, in bytes."""
    context = WriteContext(WriteSpec.of(options, RunPaths(options.output)), listing)
    with SpoolReader(context.spec.run.spool_directory) as spool:
        reader = InputReader(context, files_at(listing.root), spool)
        read = [reader.read(example, is_sampled=False) for example in examples]
    sizes = [len(item.data) for item in read if not isinstance(item, DeadLetter)]
    return sum(sizes) // max(1, len(sizes))


def _splits(images: Sequence[InputRecord], groups: Sequence[bytes], options: PrepareOptions) -> list[str]:
    """Returns the split of each input, which is predefined or computed from a hash of the group.

    The result is approximate with `--stratify` or `--splits_from`.
    """
    by_group, divide = SplitByGroup(options.shares), (None, *options.divide)
    split_numbers = by_group([group or image.key.encode() for image, group in zip(images, groups)]).tolist()
    return [by_group.names[split_number] if image.split in divide else image.split for image, split_number in zip(images, split_numbers)]


def describe_estimate(estimate: Estimate, start_seconds: float | None) -> str:
    """Formats an estimate for the terminal.

    Args:
        estimate: The estimate.
        start_seconds: The expected time until a cluster reads the first image, in seconds. None for a local run.
    """
    return "\n".join(f"{name + ':':<10} {text}" for name, text in _lines(estimate, start_seconds))


def _lines(estimate: Estimate, start_seconds: float | None) -> Iterator[tuple[str, str]]:
    dead_letters = estimate.num_dead_letters
    rejected = f", {dead_letters:,} inputs rejected by the listing" if dead_letters else ""
    classes = f" in {estimate.num_classes:,} classes" if estimate.num_classes else ""
    yield "images" if estimate.has_images else "examples", f"{estimate.num_all:,}{classes}{rejected}"
    assumed = "" if estimate.has_sizes else f", if an image has {format_size(ASSUMED_BYTES)} (the listing has no sizes)"
    twice = ", twice because of --duplicates" if estimate.num_reads == 2 else ""
    yield "read", f"{format_size(sum(estimate.num_bytes.values()))} from the source{twice}{assumed}"
    shards = ", ".join(f"{split} {count:,}" for split, count in estimate.num_shards.items())
    at_most = "" if estimate.is_kept else "at most "  # The size of converted images is unknown.
    yield "written", f"{at_most}{format_size(estimate.output_bytes)} in {sum(estimate.num_shards.values()):,} shards ({shards})"
    yield "plan", f"{format_size(estimate.plan_bytes)} of temporary files beside the output"
    where = "in total" if start_seconds is None else "per worker process"
    yield "memory", f"{format_size(estimate.memory)} {where}"
    if start_seconds is None:
        yield "time", f"about {_duration(3 + estimate.core_seconds / num_cores())} on the {num_cores()} cores of this machine"
        return
    workers = estimate.num_workers
    seconds = start_seconds + estimate.core_seconds / CORES_PER_WORKER / workers
    yield "workers", f"{workers:,} with {CORES_PER_WORKER} cores each, one worker process per core"
    yield "time", f"about {_duration(seconds)} with these workers, including {_duration(start_seconds)} to start them"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
