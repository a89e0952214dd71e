"""Checks that each input has become an example, a dead letter or a dropped duplicate."""

from typing import Iterator, Sequence

from beam_pipelines.elements.dead_letters import DeadLetterCount
from beam_pipelines.elements.listing import Listing, empty_split
from beam_pipelines.elements.statistics import ImageStatistics, SplitStatistics
from beam_pipelines.errors import RunError, printable
from tf_input.coordinate_names import has_name_of_coordinates
from tf_input.dataset_format import LABEL

# Maximum number of class names in a line.
NUM_NAMES_SHOWN = 10
_TRAIN = "train"


def check_sums(images: ImageStatistics, dead_letters: DeadLetterCount, listing: Listing, max_bad_fraction: float) -> None:
    """Checks the number of inputs before the dataset is published.

    Args:
        images: The statistics of all shards.
        dead_letters: The dead letters of all stages.
        listing: The listing of all inputs.
        max_bad_fraction: The largest allowed fraction of dead letters.

    Raises:
        UserError: No example was written, or a split has no example.
        DataError: Too many inputs are dead letters.
        RunError: An input was lost: it is neither an example nor a dead letter nor a dropped duplicate.
    """
    if images.num_examples + dead_letters.num + listing.num_dropped != listing.num_inputs:
        dropped = f", and {listing.num_dropped} duplicates were dropped" if listing.num_dropped else ""
        raise RunError(
            f"{listing.num_inputs} inputs were listed, and {images.num_examples} examples and "
            f"{dead_letters.num} dead letters were written{dropped}. The runner lost or repeated some. Run the same "
            "command again."
        )
    listing.check_dead_letters(dead_letters, max_bad_fraction, " and rerun with --restart, or rerun with --resume")
    for position, split in enumerate(listing.splits):
        if not images.splits[position].num_examples:
            raise empty_split(split, images.num_examples, listing.num_groups)


def find_warnings(images: ImageStatistics, listing: Listing) -> list[str]:
    """Returns one-line warnings about unexpected properties of the dataset."""
    facts, black_white = images.images.values(), images.nums["num_black_white_masks"]
    keeps_depth = any(feature.is_image and feature.dtype == "uint16" for feature in listing.schema)
    nums = {
        "rotated": images.nums["num_turns_guessed"],
        "black and white": black_white if black_white > images.nums["num_class_masks"] else 0,
        "deep": 0 if keeps_depth else sum(fact.num_deep for fact in facts),
        "odd": sum(fact.num_odd for fact in facts),
        "pages": sum(fact.num_with_more_pages for fact in facts),
    }
    lines = [*_classes_without_examples(images, listing), *_classes_without_training(images, listing)]
    lines += [*(_WARNINGS[name].format(num=num) for name, num in nums.items() if num)]
    lines += [*_coordinate_warnings(images, listing), *listing.warnings]
    return [*lines, *(line for of in (listing.division, listing.near_duplicates) if of for line in of.warnings())]


_WARNINGS = {
    "rotated": "images with boxes, masks or keypoints that EXIF rotates: {num:,}. These annotations were rotated too. That is right if they were "
    "drawn on the image as its file stores it: pass --drawn_on=file to confirm it. If they were drawn on the upright image, as most tools "
    "show it, pass --drawn_on=upright. The size that annotations state does not prove either.",
    "black and white": "masks with only the values 0 and 255: {num:,}. These values become classes 0 and 255 in batches. If 255 is the "
    "foreground, pass --mask_values 0=0,255=1. A loss with ignore_class=255 would ignore it.",
    "deep": "images with 16 bits per channel: {num:,}. Batches have 8 bits. To read all 16 bits, pass --keep_depth, without --image_size, "
    "--image_format or --image_encoding.",
    "odd": "JPEGs with bytes that decoders skip with a warning, such as padding or a camera trailer: {num:,}. No pixel is missing.",
    "pages": "TIFF or HEIC files with more than one page or image: {num:,}. Only the first is stored. To store the others too, split the "
    "files, for example with: magick FILE.tif FILE-%d.png",
}


def _classes_without_examples(images: ImageStatistics, listing: Listing) -> Iterator[str]:
    """Yields a warning for each class feature with classes that were listed, but that no stored example has."""
    for feature in listing.schema:
        listed = listing.listed_labels.get(feature.name, frozenset())
        seen_labels = _seen_labels(images, feature.name)
        emptied = [name for label, name in enumerate(feature.label_names) if name in listed and label not in seen_labels]
        if emptied:
            yield f"{feature.name}: classes without examples, because all of their inputs were rejected or their boxes removed: {len(emptied):,}: {_first(emptied)}"


def _classes_without_training(images: ImageStatistics, listing: Listing) -> Iterator[str]:
    """Yields a warning for each class feature with classes that the source assigns only to other splits than `train`."""
    if _TRAIN not in listing.splits or listing.fractions is not None:
        return
    train = images.splits[listing.splits.index(_TRAIN)]
    for feature in (feature for feature in listing.schema if feature.label_names):
        labels = sorted(_seen_labels(images, feature.name) - _labels_of(train, feature.name))
        if others := [feature.label_names[label] for label in labels]:
            have = f"classes that have examples, but none in the split {_TRAIN!r}"
            yield f"{feature.name}: {have}: {len(others):,}: {_first(others)}. Check their names."


def _coordinate_warnings(images: ImageStatistics, listing: Listing) -> Iterator[str]:
    """Yields warnings about features that look like image coordinates, if images were resized or rotated."""
    rotated, resized = {}, {}
    for feature in listing.schema:
        if (facts := images.coordinates.get(feature.name)) is None:
            continue
        has_name = has_name_of_coordinates(feature)
        if facts.num_rotated and (has_name or facts.are_pixels(has_name)):
            rotated[feature.name] = facts.num_rotated
        if facts.num_resized and facts.are_pixels(has_name):  # Relative coordinates stay valid.
            resized[feature.name] = facts.num_resized
    for nums, happened, advice in (
        (resized, "Resized images", "Otherwise convert them to fractions of the image's width and height (0 to 1), or omit --image_size."),
        (
            rotated,
            "Images that EXIF rotates",
            "Otherwise, if they refer to the image as its file stores it, rotate the files upright and convert the coordinates before `prepare`.",
        ),
    ):
        if nums:
            yield (
                f"{happened}: {max(nums.values()):,}. The values of these features look like coordinates, and were stored as given: "
                f"{_first([*nums])}. If they are points, use the kind keypoints, such as --feature NAME:keypoints. {advice}"
            )


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_NAMES_SHOWN:,} more" if len(names) > NUM_NAMES_SHOWN else ""
    return ", ".join(printable(repr(name)) for name in names[:NUM_NAMES_SHOWN]) + more


def _seen_labels(images: ImageStatistics, name: str) -> set[int]:
    labels: set[int] = set()
    for split in images.splits.values():
        labels |= _labels_of(split, name)
    return labels


def _labels_of(split: SplitStatistics, name: str) -> set[int]:
    return {*split.other_labels.get(name, ()), *(split.labels if name == LABEL else ())}
