"""Defines the base class of the source formats of annotation tools."""

import shlex
from typing import Any, ClassVar, Mapping, NamedTuple, Sequence

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.annotations.object_features import object_features
from beam_pipelines.sources.annotations.shapes import Shape, object_values
from beam_pipelines.sources.cells.class_cells import known, read_class
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at
from tf_input.dataset_format import LABEL, OBJECTS


class Annotation(NamedTuple):
    """The annotation of an image.

    Attributes:
        file_name: The name of the image file, as written in the annotation; may be empty.
        values: The values of the features, as in `InputRecord`. None if the dataset has no such features.
        label: The class name, if the dataset has a single-class feature `label`. Otherwise empty.
        others: The names of the fields that are not stored.
        image: The bytes of the image file that is embedded in the annotation, or empty bytes.
    """

    file_name: str
    values: Mapping[str, Any] | None = None
    label: str = ""
    others: frozenset[str] = frozenset()
    image: bytes = b""


class AnnotationSource(Source):
    """Base class of the formats of annotation tools, which describe objects and sometimes the classes of entire images.

    By default, the targets are the objects. `--label NAME` selects the classes of entire images instead, if the format
    has such classes, and `--label objects` selects the objects again.

    Attributes:
        flags: A mapping from the name of each additional feature of objects to its kind.
        is_relative: Whether coordinates are fractions of the image size instead of pixels.
        class_fields: The fields with classes of entire images that `--label` may select. None allows any field.
    """

    flags: ClassVar[Mapping[str, str]] = {}
    is_relative: ClassVar[bool] = False
    class_fields: ClassVar[Sequence[str] | None] = ()

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        source = config.source
        if source.has_masks and source.labels is not None and not any(_is_objects(column) for column in source.labels):
            raise UserError("--masks: needs objects. Omit it, or the option --label.")
        self._config = config
        self._with_sizes = with_sizes
        self._spool_directory = spool_directory
        self._label_names = source.names_of(OBJECT_LABEL)
        self._root = Root(self._root_path(), config.follow_links)
        self.root = self._root.path
        self._files = files_at(self.root)
        self.num_ignored = 0
        self.unused_fields = UnusedFields()
        self._set_targets(self._find_labels())

    def _find_labels(self) -> Sequence[Column] | None:
        """Returns the label columns from `--label`. None selects the objects."""
        return self._config.source.labels

    def _note(self, warning: str, num: int = 1) -> None:
        """Adds to the count of a warning. The count of files, lines or regions is printed before the text of the warning."""
        self.noted[warning] = self.noted.get(warning, 0) + num

    def _root_path(self) -> str:
        """Returns the folder that image paths are relative to."""
        return self._config.source.image_root or self._image_root(self._config.input)

    def _image_root(self, path: str) -> str:
        """Returns the folder that image paths are relative to by default, given the path of the input."""
        return path

    def _set_targets(self, labels: Sequence[Column] | None) -> None:
        """Sets the features and targets, given the label columns from `--label`. None selects the objects."""
        self._has_objects = labels is None or any(_is_objects(column) for column in labels)
        self._class_columns = [column for column in labels or () if not _is_objects(column)]
        for column in self._class_columns:
            self._check_class_column(column)
        objects = object_features(self.flags, self._config.source.has_masks) if self._has_objects else ()
        self.features = (*objects, *(column.feature() for column in self._class_columns))
        masks = [feature.name for feature in objects if feature.kind == "mask"]
        self.targets = (*((OBJECTS, *masks) if objects else ()), *(column.name for column in self._class_columns))

    def _check_class_column(self, column: Column) -> None:
        name = printable(",".join(column.names))
        if self.class_fields is not None and column.names[0] not in self.class_fields or len(column.names) > 1:
            fields = ", ".join((*(self.class_fields or ()), OBJECTS, "none"))
            raise UserError(f"--label={name}: --source={self.kind.name} has no such field. Give one of {fields}.")
        if column.kind not in ("class", "multi_label"):
            raise UserError(f"--label={name}:{column.kind}: {name} contains class names. Use {name} or {name}:multi_label.")

    def _make_annotation(
        self,
        file_name: str,
        shapes: Sequence[Shape],
        image_size: tuple[int, int] | None,
        classes: Mapping[str, Sequence[Any]] = {},
        others: Sequence[str] = (),
        image: bytes = b"",
    ) -> Annotation:
        """Creates the annotation of an image.

        Args:
            file_name: The name of the image file, as written in the annotation.
            shapes: The objects.
            image_size: The (height, width) of the image in pixels, as written in the annotation; None if missing.
            classes: A mapping from each field with classes of the entire image to these classes.
            others: The names of the fields that are not stored.
            image: The bytes of the image file, if it is embedded in the annotation.

        Raises:
            InvalidInput: A class is invalid, or an image that needs exactly one class has no class or several classes.
        """
        values: dict[str, Any] = {}
        label = ""
        if self._has_objects:
            values |= object_values(shapes, image_size, self.flags, self._config.source.has_masks, self.is_relative)
        for column in self._class_columns:
            value = self._read_classes(column, classes.get(column.names[0], ()))
            if column.name == LABEL and isinstance(value, str):
                label = value
            else:
                values[column.name] = value
        return Annotation(file_name, values or None, label, frozenset(others), image)

    def _unused_classes(self, classes: Mapping[str, Sequence[Any]]) -> list[str]:
        """Returns the fields with classes of the entire image that `--label` does not name, each with the option that
        stores the field. Returns an empty list for `--label=none`."""
        used = {column.names[0] for column in self._class_columns}
        objects = f"--label {OBJECTS} " if self._has_objects else ""
        unused = [field for field, found in classes.items() if found and field not in used] if self.features else []
        return [f"{field} (stored with {objects}--label {shlex.quote(field)}:multi_label)" for field in unused]

    def _read_classes(self, column: Column, classes: Sequence[Any]) -> str | tuple[str, ...]:
        """Returns the only class of an image, or all classes of the image if the column has the kind `multi_label`."""
        names, field = self._config.source.names_of(column.name), printable(column.names[0])
        try:
            found = sorted({known(read_class(item), names) for item in classes})
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"{field} {error}") from None
        if column.kind == "multi_label":
            return tuple(found)
        if len(found) != 1:
            shown = f"{len(found)} classes ({printable(', '.join(found)[:80])})" if found else "no class"
            raise InvalidInput("bad_label", f"{field} has {shown}; it must have one (use {field}:multi_label for any number)")
        return found[0]


def _is_objects(column: Column) -> bool:
    return column.names == (OBJECTS,)
