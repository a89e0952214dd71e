"""Groups arrays of the same examples by their names, such as `x_train` and `y_train`."""

from typing import Callable, Collection, Mapping, NamedTuple, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_columns import find_name, raw_layout
from beam_pipelines.sources.arrays.array_images import ImageSet
from beam_pipelines.sources.arrays.array_streams import Field

# Names of arrays, in lower case.
IMAGE_NAMES = ("images", "image", "x", "data", "imgs")
FEATURES_NAME = "features"  # numbers of each example, used if there are no images
LABEL_NAMES = ("labels", "label", "y", "targets", "target")


class NamedArray(NamedTuple):
    """An array in a file or in an archive.

    Attributes:
        location: The archive or folder that contains the array.
        split: The split that the name indicates, or None.
        name: The name of the array without the split.
        path: The path of the file. For a member of an archive, the archive's path and the member's name.
        open: A function that reads the header of the array.
    """

    location: str
    split: str | None
    name: str
    path: str
    open: Callable[[], Field]


def make_sets(arrays: Sequence[NamedArray], image_column: str | None, taken: Collection[str] = ()) -> list[ImageSet]:
    """Groups arrays that belong together, such as images and their labels, into sets.

    Args:
        arrays: All arrays.
        image_column: The name of the arrays with images. With None, it is one of `IMAGE_NAMES`.
        taken: The names of arrays that are labels or features, and therefore not images.

    Raises:
        UserError: The array of that name does not contain images.
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
    """Returns a column for the array `features`, or None if no numeric array has this name."""
    by_name = {array.name: array for array in arrays}
    name = find_name(by_name, (FEATURES_NAME,))
    if name is None or (field := by_name[name].open()).dtype.kind not in "fiu":
        return None
    is_integer = field.dtype.kind != "f" and len(field.shape) == 1
    return Column(name, (name,), "integer", field.shape) if is_integer else Column(name, (name,), "float")


def make_sets_without_images(arrays: Sequence[NamedArray], feature: str) -> list[ImageSet]:
    """Returns a set of examples without images for each group of arrays that includes the array `feature`."""
    sets = []
    for (set_name, split), group in _group(arrays).items():
        if feature in group:
            name = "/".join(part for part in (set_name, split) if part) or group[feature].path
            sets.append(ImageSet(name, split, group[feature].open(), None, {column: array.open for column, array in group.items()}))
    return sets


def _group(arrays: Sequence[NamedArray]) -> dict[tuple[str, str | None], dict[str, NamedArray]]:
    """Groups arrays by location and split."""
    groups: dict[tuple[str, str | None], dict[str, NamedArray]] = {}
    for array in arrays:
        groups.setdefault((array.location, array.split), {}).setdefault(array.name, array)
    return groups


def _find_given(group: Mapping[str, NamedArray], image_column: str) -> str | None:
    """Returns the name of the array to which `image_column` refers, or None if there is no such array."""
    paths = {array.path.rpartition("/")[2].removesuffix(".npy"): name for name, array in group.items()}
    return image_column if image_column in group else paths.get(image_column)


def no_images(where: str, arrays: Sequence[NamedArray], image_column: str | None) -> UserError:
    """Returns the error for an input without arrays of images."""
    usual = f"{', '.join(IMAGE_NAMES)}. Name it with --image_column. For examples without images, pass --feature."
    called = f"{printable(image_column)} (--image_column)." if image_column else usual
    array_paths = ", ".join(sorted(printable(array.path) for array in arrays)[:20]) or "none"
    return UserError(f"{printable(where)}: has no array of images called {called} The arrays in it are: {array_paths}.")
