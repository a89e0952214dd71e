"""Arrays that belong together, by their names: `x_train` and `y_train`, `train-images` and `train-labels`."""

from typing import Callable, Collection, Mapping, NamedTuple, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_columns import find_name, raw_layout
from beam_pipelines.sources.arrays.array_images import ImageSet
from beam_pipelines.sources.arrays.array_streams import Field

# Compared in lower case.
IMAGE_NAMES = ("images", "image", "x", "data", "imgs")
FEATURES_NAME = "features"  # of the numbers of each example, if there are no images
LABEL_NAMES = ("labels", "label", "y", "targets", "target")


class NamedArray(NamedTuple):
    """One array in a file or in an archive.

    Attributes:
        place: The file or folder that it lies in, with the arrays that belong to it.
        split: The split that its name is of; None: of none.
        name: The name of the array without the split.
        path: The path of its file; of an archive's member the archive's path and the member's name.
        open: A function that reads its header.
    """

    place: str
    split: str | None
    name: str
    path: str
    open: Callable[[], Field]


def make_sets(arrays: Sequence[NamedArray], image_column: str | None, taken: Collection[str] = ()) -> list[ImageSet]:
    """The sets of images in arrays.

    Args:
        arrays: All that there are.
        image_column: The name of the images; None: one of `IMAGE_NAMES`.
        taken: Names that are not the images', because they are something else.

    Raises:
        UserError: An array that is to be images is none of images.
    """
    sets = []
    for (_, split), group in _group(arrays).items():
        others = [name for name in group if name not in taken]
        name = _find_given(group, image_column) if image_column is not None else find_name(others, IMAGE_NAMES)
        if name is not None:
            images = group[name].open()
            columns = {column: array.open for column, array in group.items() if column != name}
            sets.append(ImageSet(group[name].path, split, images, raw_layout(images), columns))
    return sets


def find_features(arrays: Sequence[NamedArray]) -> Column | None:
    """Returns the feature of the array `features`, which has numbers for each example; None: there is no such array."""
    by_name = {array.name: array for array in arrays}
    name = find_name(by_name, (FEATURES_NAME,))
    if name is None or (field := by_name[name].open()).dtype.kind not in "fiu":
        return None
    is_integer = field.dtype.kind != "f" and len(field.shape) == 1
    return Column(name, (name,), "integer", field.shape) if is_integer else Column(name, (name,), "float")


def make_sets_without_images(arrays: Sequence[NamedArray], feature: str) -> list[ImageSet]:
    """The sets of examples in arrays of which one is the column of a feature."""
    sets = []
    for (place, split), group in _group(arrays).items():
        if feature in group:
            name = "/".join(part for part in (place, split) if part) or group[feature].path
            sets.append(ImageSet(name, split, group[feature].open(), None, {column: array.open for column, array in group.items()}))
    return sets


def _group(arrays: Sequence[NamedArray]) -> dict[tuple[str, str | None], dict[str, NamedArray]]:
    """Those that belong together, by their names."""
    groups: dict[tuple[str, str | None], dict[str, NamedArray]] = {}
    for array in arrays:
        groups.setdefault((array.place, array.split), {}).setdefault(array.name, array)
    return groups


def _find_given(group: Mapping[str, NamedArray], image_column: str) -> str | None:
    """An array by its name, with its split or without."""
    paths = {array.path.rpartition("/")[2].removesuffix(".npy"): name for name, array in group.items()}
    return image_column if image_column in group else paths.get(image_column)


def no_images(where: str, arrays: Sequence[NamedArray], image_column: str | None) -> UserError:
    """What to raise where there is no set."""
    usual = f"{', '.join(IMAGE_NAMES)}, or --image_column with its name; or, without images, --feature"
    expected = printable(image_column) if image_column else usual
    found = ", ".join(sorted(printable(array.path) for array in arrays)[:20]) or "none"
    return UserError(
        f"{printable(where)}: no array of images in it; expected one called {expected}; the arrays are: {found}"
    )
