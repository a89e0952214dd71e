"""Pairs folders of images with folders of masks by their names, such as `train_images` and `train_masks`."""

import re
from typing import NamedTuple, Sequence

# Words in the names of folders of images and of masks, most specific first.
_IMAGE_WORDS = ("jpegimages", "images", "image", "imgs", "img", "leftimg8bit")
_MASK_WORDS = (
    *("segmentationclass", "gtfine", "masks", "mask", "labels", "label", "annotations", "annotation", "annots", "annot"),
    *("groundtruth", "gt"),
)
CITYSCAPES = "leftimg8bit"


class NamedPair(NamedTuple):
    """A folder of images and a folder of masks.

    Attributes:
        images: The name of the folder of images.
        masks: The name of the folder of masks.
        rest: The names without the words for images and masks, such as `train` for `train_images` and `train_masks`;
            "" for `images` and `masks`.
    """

    images: str
    masks: str
    rest: str


def pair_folders(names: Sequence[str]) -> list[NamedPair]:
    """Returns the pairs of folders among the subfolders of a folder. Pairs with a rest are omitted if a pair has none."""
    by_name = {name.lower(): name for name in reversed(names)}
    images, masks = _rests(by_name, _IMAGE_WORDS), _rests(by_name, _MASK_WORDS)
    pairs = []
    for rest, mask in sorted(masks.items()):
        image = images.get(rest, rest if rest in by_name else None)
        if image is not None and image != mask:
            pairs.append(NamedPair(by_name[image], by_name[mask], rest and by_name.get(rest, rest)))
    return [pair for pair in pairs if not pair.rest] or pairs


def images_without_masks(names: Sequence[str], pairs: Sequence[NamedPair]) -> dict[str, str]:
    """Returns a mapping from the rest of a name, such as `test`, to the folder of images, for folders without masks."""
    used = {name for pair in pairs for name in (pair.images, pair.masks)}
    by_name = {name.lower(): name for name in names if name not in used}
    images = _rests(by_name, _IMAGE_WORDS)
    return {rest: by_name[name] for rest, name in ({name: name for name in by_name} | images).items()}


def _rests(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """Maps the rest of a name without a word in `words` to the name. Earlier words take precedence."""
    found: dict[str, tuple[int, str]] = {}
    pattern = re.compile(rf"(?:(?P<before>.+?)[ ._-]?)??(?P<last>{'|'.join(words)})|(?P<first>{'|'.join(words)})[ ._-](?P<after>.+)")
    for name in sorted(names):
        if match := pattern.fullmatch(name):
            rest = match["before"] or match["after"] or ""
            rank = words.index(match["last"] or match["first"]), name
            found[rest] = min(found.get(rest, rank), rank)
    return {rest: name for rest, (_, name) in found.items()}
