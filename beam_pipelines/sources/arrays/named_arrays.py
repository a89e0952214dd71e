"""Arrays that belong together, by their names: `x_train` and `y_train`, `train-images` and `train-labels`."""

from typing import Callable, Mapping, NamedTuple, Sequence

from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_columns import find_name
from beam_pipelines.sources.arrays.array_images import ImageSet, raw_layout
from beam_pipelines.sources.arrays.array_streams import Field

# Compared in lower case.
IMAGE_NAMES = ("images", "image", "x", "data", "imgs")
LABEL_NAMES = ("labels", "label", "y", "targets", "target")


class NamedArray(NamedTuple):
    """One array.

    Attributes:
        place: What it lies in, with those that belong to it.
        split: The split that its name is of; None: none.
        name: Without that.
        path: Of its file; of an archive's member, that and the member's name.
        open: Reads its header.
    """

    place: str
    split: str | None
    name: str
    path: str
    open: Callable[[], Field]


def make_sets(arrays: Sequence[NamedArray], image_column: str | None) -> list[ImageSet]:
    """The sets of images in arrays.

    Raises:
        UserError: An array that is to be images is none of images.
    """
    groups: dict[tuple[str, str | None], dict[str, NamedArray]] = {}
    for array in arrays:
        groups.setdefault((array.place, array.split), {}).setdefault(array.name, array)
    sets = []
    for (_, split), group in groups.items():
        name = _find_given(group, image_column) if image_column is not None else find_name(group, IMAGE_NAMES)
        if name is not None:
            images = group[name].open()
            columns = {column: array.open for column, array in group.items() if column != name}
            sets.append(ImageSet(group[name].path, split, images, raw_layout(images), columns))
    return sets


def _find_given(group: Mapping[str, NamedArray], image_column: str) -> str | None:
    """An array by its name, with its split or without."""
    paths = {array.path.rpartition("/")[2].removesuffix(".npy"): name for name, array in group.items()}
    return image_column if image_column in group else paths.get(image_column)


def no_images(where: str, arrays: Sequence[NamedArray], image_column: str | None) -> UserError:
    """What to raise where there is no set."""
    expected = printable(image_column) if image_column else f"{', '.join(IMAGE_NAMES)}, or --image_column with its name"
    found = ", ".join(sorted(printable(array.path) for array in arrays)[:20]) or "none"
    return UserError(
        f"{printable(where)}: no array of images in it; expected one called {expected}; the arrays are: {found}"
    )
