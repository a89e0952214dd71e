"""Finds the bottleneck in the measurements of a benchmark and suggests changes."""

import dataclasses
import json
import math
import os
import shlex
from typing import Any, Iterator

from tf_input.benchmark.stages import Stage, time_shares
from tf_input.cores import num_cores
from tf_input.dataset import PreparedDataset
from tf_input.dataset_format import IMAGE, RUN, Feature
from tf_input.pipeline.plan import Plan
from tf_input.read_config import ReadConfig
from tf_input.regular_files import read_regular
from tf_input.storage.paths import is_url, join, local_path

_LARGE = 1.5  # smaller images are suggested if the stored side is at least this multiple of the requested side
_MARGIN = 8 / 7  # the suggested stored side divided by the crop side, such as 256 pixels for crops of 224
_MAX_RAW_BYTES = 64 * 64 * 3  # size up to which images can be stored as raw pixels
_IDLE = 0.6  # if a smaller share of the cores is busy, the processor is not the bottleneck


@dataclasses.dataclass(frozen=True)
class Findings:
    """The properties of a split and the reading options on which the advice depends.

    Attributes:
        directory: The directory of the dataset.
        source: The input path from which the dataset was prepared; "IN" if it is unknown.
        is_remote: Whether the dataset is in an object store.
        split: The name of the split.
        num_examples, num_bytes, num_shards: The numbers of examples, bytes and shards of the split.
        image: The feature `image`; None if there are no images.
        formats: The number of images in each format.
        stored_side: The mean length of the shorter side in pixels; None if unknown.
        stored_size: The (height, width) of all images; None if sizes differ.
        decoded_bytes: The size of the decoded split in bytes; None if it can't be cached in memory.
        is_cached: Whether the split is cached in memory.
        config: The reading options. If there are images, the options include an `image_size`.
        order: The order of an epoch: "exact", "window", "key" or None.
        channels: The number of channels of images in batches.
    """

    directory: str
    source: str
    is_remote: bool
    split: str
    num_examples: int
    num_bytes: int
    num_shards: int
    image: Feature | None
    formats: dict[str, int]
    stored_side: float | None
    stored_size: tuple[int, int] | None
    decoded_bytes: int | None
    is_cached: bool
    config: ReadConfig
    order: str | None
    channels: int = 3

    @classmethod
    def of(cls, dataset: PreparedDataset, split: str, plan: Plan) -> "Findings":
        """Returns the properties of a split of an open dataset."""
        shards = dataset.manifest.splits[split]
        images = dataset.statistics.get("images", {})
        sides = [images[side]["mean"] for side in ("height", "width") if images.get(side)]
        if dataset.image_size is not None:
            sides = list(dataset.image_size)
        return cls(
            directory=os.fspath(dataset.directory),
            source=_source(dataset.directory),
            is_remote=is_url(dataset.directory),
            split=split,
            num_examples=dataset.num_examples(split),
            num_bytes=sum(shard.num_bytes for shard in shards),
            num_shards=len(shards),
            image=dataset.features.get(IMAGE),
            formats=images.get("formats") or {},
            stored_side=min(sides) if sides else None,
            stored_size=dataset.image_size,
            decoded_bytes=dataset.split_reader(split).decoded_bytes(plan.decoder),
            is_cached=plan.cached is not None,
            config=plan.config,
            order=plan.kind,
            channels=plan.config.channels or dataset.channels or 0,
        )

    def describe(self) -> str:
        """Returns a one-line description of the split and the reading options."""
        size = self.config.height_and_width
        pixels = f"{size[0]} x {size[1]} pixels, " if size else ""
        augment = "augmented" if self.config.augment else "not augmented"
        order = {None: "in the order of the shards"}.get(self.order, f'shuffle="{self.order}"')
        return (
            f"{self.split}: {self.num_examples:,} {'images' if self.image else 'examples'}, {self.num_bytes / 1e6:,.1f} MB in {self.num_shards} shards; batches of "
            f"{self.config.batch_size}, {pixels}{augment}, {order}; {num_cores()} cores"
        )

    def advise(self, stages: list[Stage]) -> str:
        """Returns the bottleneck and the suggested changes, as lines for a terminal."""
        shares = time_shares(stages)
        bottleneck = stages[shares.index(max(shares))].name
        last = stages[-1]
        busy = min(1.0, last.images_per_second * last.cpu_seconds / num_cores())
        lines = [f"bottleneck: {bottleneck}, {max(shares):.0%} of the time; {busy:.0%} of the cores are busy"]
        lines += [f"- {advice}" for advice in self._changes(bottleneck, stages[0], busy)]
        return "\n".join(lines)

    def _changes(self, bottleneck: str, read: Stage, busy: float) -> Iterator[str]:
        side = min(self.config.height_and_width or (1, 1))
        if bottleneck == "read":
            yield from self._faster_reading(read)
        if not self.is_cached and (reason := self.why_not_cached()):
            yield f"{self.split} is not cached in memory: {reason}"
        if self.image and self.image.is_file and self.stored_side and self.stored_side >= _LARGE * side and not self.is_cached:
            yield from self._smaller_images(side)
        if not self.is_cached and self.decoded_bytes is not None and self.stored_size is not None:
            yield from self._small_images(self.decoded_bytes, "exact={}x{}".format(*self.stored_size))
        elif self.image and self.image.is_file and self.formats.get("png", 0) * 2 > sum(self.formats.values()) and bottleneck == "decode":
            command = self._prepare("jpeg", "--image_format", "jpeg:90")
            yield f"most images are PNG, which is slower to decode than JPEG:\n  {command}"
        if bottleneck == "augment":
            yield "use tf_input.augmentation_layer to flip images and change colors on the accelerator"
        if busy < _IDLE and bottleneck != "read":
            yield "some cores are idle, or are used by other processes"
        elif bottleneck != "read":
            yield "the cores are busy: twice as many cores would read about twice as many images per second"

    def _faster_reading(self, read: Stage) -> Iterator[str]:
        megabytes = read.images_per_second * self.num_bytes / max(1, self.num_examples) / 1e6
        if self.is_remote:
            yield (
                f"{megabytes:,.0f} MB/s come from the object store; with a local cache, only the first epoch reads from the store: "
                f'tf_input.open("{self.directory}", cache_directory="...")'
            )
        elif read.images_per_second * read.cpu_seconds < _IDLE:
            yield f"the disk gives {megabytes:,.0f} MB/s and limits the speed: copy the dataset to a faster disk"
        if self.order == "exact":
            yield 'shuffle="exact" reads single records; shuffle="window" reads large chunks, and still mixes well'

    def why_not_cached(self) -> str:
        """Explains why the split is not cached in memory; "" if the reason is unknown."""
        budget = self.config.cache_in_memory
        if not budget:
            return "cache_in_memory is 0"
        if self.decoded_bytes is not None and self.decoded_bytes > budget:
            return f"it takes {self.decoded_bytes / 1e6:,.0f} MB decoded, and cache_in_memory is {budget / 1e6:,.0f} MB"
        if self.decoded_bytes is None and self.image and self.stored_size is None:
            return "its images differ in size"
        return ""

    def _smaller_images(self, side: int) -> Iterator[str]:
        """Yields advice to store smaller images if images are larger than needed."""
        augmentation = self.config.augmentation
        margin = _MARGIN if augmentation is not None and augmentation.crop else 1
        height, width = (math.ceil(item * margin) for item in self.config.height_and_width)
        num_bytes = self.num_examples * height * width * self.channels
        finding = f"images are {self.stored_side:,.0f} pixels on the short side, but only {side} are used"
        if num_bytes <= self.config.cache_in_memory:
            command = self._prepare(f"{height}x{width}", "--image_size", f"exact={height}x{width}")
            yield (
                f"{finding}; stored in one size (other aspect ratios are stretched), the split takes {num_bytes / 1e6:,.1f} MB "
                f"decoded and is cached in memory:\n  {command}"
            )
            return
        stored = math.ceil(side * _MARGIN)
        yield (
            f"{finding}; stored smaller, there is less to read and to decode:\n"
            f"  {self._prepare(f'{stored}', '--image_size', f'short={stored}')}"
        )

    def _small_images(self, decoded_bytes: int, size: str) -> Iterator[str]:
        if decoded_bytes <= _memory_bytes() // 2 and decoded_bytes > self.config.cache_in_memory:
            megabytes = decoded_bytes / 1e6
            yield f"decoded, the split takes {megabytes:,.0f} MB: cache_in_memory={decoded_bytes} caches it in memory"
        if self.image and self.image.is_file and decoded_bytes <= _MAX_RAW_BYTES * self.num_examples:
            yield (
                f"stored as pixels, images need no decoding; {self.num_bytes / 1e6:,.0f} MB become about "
                f"{decoded_bytes / 1e6:,.0f}:\n"
                f"  {self._prepare('raw', '--image_encoding', 'raw', '--image_size', size)}"
            )

    def _prepare(self, suffix: str, *options: str) -> str:
        """Returns a command that prepares the dataset again with the suggested options."""
        output = f"{self.directory.rstrip('/')}_{suffix}"
        command = ["recordmill", "prepare", "--input", self.source, "--output", output, *options]
        return f"{shlex.join(command)}  # and the options of {RUN}"


def _source(directory: Any) -> str:
    """Returns the input path from which a dataset was prepared; "IN" if the path is unknown."""
    try:
        return str(json.loads(read_regular(local_path(join(directory, RUN))))["options"]["input"])
    except (OSError, ValueError, KeyError, TypeError):
        return "IN"


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
