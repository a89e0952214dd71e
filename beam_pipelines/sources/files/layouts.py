"""Identifies folders by their names, such as folders of images and folders of splits."""

from typing import Iterable, Sequence

from beam_pipelines.columns.forms import form_of
from beam_pipelines.config.option import Option
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.elements.listing import order_splits
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS

IMAGE_FOLDERS = ("jpegimages", "images", "image", "imgs", "img")


CHOOSE_SPLIT_FOLDERS = "Use --split_folders=yes if all folders are splits, or --split_folders=no if all are classes."


def name_splits(root: str, folders: Sequence[str], split_folders: bool | None) -> dict[str, str | None]:
    """Returns a mapping from folders to splits. All values are None if the folders are not splits.

    Args:
        root: The root of the source, for messages.
        folders: The names of the folders.
        split_folders: Whether the folders are splits. If None, they are splits if all of them are named like splits.

    Raises:
        UserError: Only some folders are splits, or a name is not valid for a split.
    """
    known = [name for name in folders if name.lower() in SPLIT_FOLDERS]
    if split_folders is False or not (known or split_folders):
        return dict.fromkeys(folders)
    others = [name for name in folders if name not in known]
    if others and split_folders is None:
        raise UserError(
            f"--input={root}: {printable(known[0])!r} is named like a split and {printable(others[0])!r} is not. "
            f"{CHOOSE_SPLIT_FOLDERS}"
        )
    for name in others:
        if not NAME_PATTERN.fullmatch(name):
            rule = "Split names consist of letters, digits and '_', and begin with a letter. Rename the folder."
            raise UserError(f"--input={root}: invalid name of a split folder: {printable(name)!r}. {rule}")
    return {name: split_of(name) for name in folders}


def split_of(folder: str) -> str:
    """Returns the split that the name of a folder indicates."""
    return SPLIT_FOLDERS.get(folder.lower(), folder)


def no_split_folders(path: str, contents: str) -> UserError:
    """Returns the error for `--split_folders=yes` with an input that has no split folders."""
    return UserError(f"--split_folders=yes: {printable(path)} {contents}, and has no split folders. Omit --split_folders.")


def given_already(options: PrepareOptions, where: str, leave: str, splits: Iterable[str] = ()) -> UserError:
    """Returns the error for `--splits` or `--folds` with an input that already has splits.

    Args:
        options: The options of the run.
        where: The name of the input with the splits.
        leave: The option that ignores the splits.
        splits: The names of the splits, if they are known.
    """
    names = order_splits(set(splits))
    asked, shown = "--folds" if options.folds is not None else "--splits", f" ({', '.join(map(printable, names))})" if names else ""
    return UserError(
        f"{asked}: {printable(where)} already has splits{shown}. Omit {asked} to keep them, use --divide "
        f"{names[0] if names else 'SPLIT'} to divide one of them, or {leave} to ignore them."
    )


# Options for columns with positions in the image, such as keypoints.
_OF_POSITIONS = ("bad_boxes", "drawn_on", "box_unit")
_OF_MASKS = ("mask_colors", "mask_values")


def given_options(source: SourceConfig) -> list[Option]:
    """Returns the options that differ from their defaults, without those that apply to all formats."""
    given = [declared for declared, _ in source.given() if declared.field not in ("kind", "divide")]
    return sorted(given, key=lambda declared: declared.field != "records")  # --records implies --image=none.


def applies(field: str, source: SourceConfig, kind: SourceKind) -> bool:
    """Returns whether the option in a field of `SourceConfig` applies to a source format."""
    if field in ("label_names_of", "first_label_names"):
        return "label_names" in kind.options
    has_positions = any(form_of(column).is_points for column in (*(source.labels or ()), *source.features))
    of_columns = (*_OF_MASKS, *(_OF_POSITIONS if has_positions else ()))
    return field in kind.options or ("features" in kind.options and field in of_columns)


def reject_options(source: SourceConfig, kind: SourceKind) -> None:
    """Raises `UserError` if an option is set that does not apply to a source format, or if `--label` names columns in a
    format without columns."""
    for declared in given_options(source):
        if not applies(declared.field, source, kind):
            instead = "Use --group_pattern, which finds groups in the keys." if declared.field == "group" else "Omit it."
            raise UserError(f"--{declared.name}: does not apply to --source={kind.name}. {instead}")
    if source.labels and not kind.has_label_columns and not kind.label_fields:
        raise UserError(
            f"--label: --source={kind.name} has no columns to name. Omit --label, or use --label=none to store no labels."
        )
