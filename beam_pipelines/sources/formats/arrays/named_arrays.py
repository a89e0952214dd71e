"""Groups arrays of the same examples by their names, such as `x_train` and `y_train`."""

from typing import Callable, Collection, Mapping, NamedTuple, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.arrays.array_columns import raw_layout
from beam_pipelines.sources.arrays.array_source import ImageSet
from beam_pipelines.sources.arrays.array_streams import Field
from beam_pipelines.sources.files.paths import find_usual

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


def make_sets(
    arrays: Sequence[NamedArray], find_lead: Callable[[Mapping[str, NamedArray]], str | None], has_images: bool
) -> list[ImageSet]:
    """Groups arrays of the same examples, such as images and labels, into sets. These arrays share a location and a
    split.

    Args:
        arrays: All arrays.
        find_lead: Returns the name of the leading array in a group of arrays: the array with the images, or else a
            feature. If it returns None, the group is omitted.
        has_images: Whether the examples have images.

    Raises:
        UserError: The leading array does not contain images.
    """
    groups: dict[tuple[str, str | None], dict[str, NamedArray]] = {}
    for array in arrays:
        groups.setdefault((array.location, array.split), {}).setdefault(array.name, array)
    sets = []
    for (location, split), group in groups.items():
        if (name := find_lead(group)) is not None:
            lead, path = group[name].open(), group[name].path
            columns = {column: array.open for column, array in group.items() if not has_images or column != name}
            set_name = path if has_images else "/".join(filter(None, (location, split))) or path
            sets.append(ImageSet(set_name, split, lead, raw_layout(lead) if has_images else None, columns))
    return sets


def find_image(group: Mapping[str, NamedArray], image_column: str | None, taken: Collection[str]) -> str | None:
    """Returns the name of the array with the images, or None if there is none. If `image_column` is None, the name is
    one of `IMAGE_NAMES` that is not `taken` by a label or a feature."""
    if image_column is None:
        return find_usual([name for name in group if name not in taken], IMAGE_NAMES)
    paths = {array.path.rpartition("/")[2].removesuffix(".npy"): name for name, array in group.items()}
    return image_column if image_column in group else paths.get(image_column)


def find_features(arrays: Sequence[NamedArray]) -> Column | None:
    """Returns a column for the array `features`, or None if no numeric array has this name."""
    by_name = {array.name: array for array in arrays}
    name = find_usual(by_name, (FEATURES_NAME,))
    if name is None or (field := by_name[name].open()).dtype.kind not in "fiu":
        return None
    is_integer = field.dtype.kind != "f" and len(field.shape) == 1
    return Column(name, (name,), "integer", field.shape) if is_integer else Column(name, (name,), "float")


def no_images(where: str, arrays: Sequence[NamedArray], image_column: str | None, is_in_subfolder: bool) -> UserError:
    """Returns the error for arrays without images. `is_in_subfolder` states that arrays in the folder above were read."""
    usual = f"{', '.join(IMAGE_NAMES)}. Name it with --image_column. For examples without images, pass --feature."
    called = f"{printable(image_column)} (--image_column)." if image_column else usual
    if is_in_subfolder:
        called += " To read only the arrays that are not in subfolders, pass --ignore='*/*'."
    array_paths = ", ".join(sorted(printable(array.path) for array in arrays)[:20]) or "none"
    return UserError(f"{printable(where)}: has no array of images called {called} The arrays in it are: {array_paths}.")
