"""Defines the base class for source formats of annotation tools."""

import itertools
import os
import shlex
from typing import Any, Callable, ClassVar, Collection, Iterable, Mapping, NamedTuple, Sequence

from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import OBJECT_LABEL
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.columns.forms import feature_of, form_of
from beam_pipelines.columns.keypoints import Points
from beam_pipelines.images.annotations import DrawnPoints, Objects, Regions
from beam_pipelines.sources.annotations.labeled_points import UnusedPoints, check_point_column, check_point_labels, select_points
from beam_pipelines.sources.annotations.object_attributes import ObjectAttributes
from beam_pipelines.sources.annotations.object_features import CORNERS, object_features
from beam_pipelines.sources.annotations.shapes import Outline, Point, Shape, corners, divided
from beam_pipelines.sources.cells.class_cells import known, read_class
from beam_pipelines.sources.files.label_files import format_of_content
from beam_pipelines.sources.files.roots import Root
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, is_remote
from beam_pipelines.storage.input_errors import read_errors
from tf_input.dataset_format import LABEL, MASK, OBJECTS

KEYPOINTS = "keypoints"  # the name of the feature without the prefix `objects/`
_NUM_CHECKED = 5  # number of files to check in a folder, because the first files may be empty or from another tool


class Annotation(NamedTuple):
    """The annotation of an image.

    Attributes:
        file_name: The name of the image file, as written in the annotation; may be empty.
        values: The values of the features, as in `InputRecord`. None if the dataset has no such features.
        label: The class name, if the dataset has a single-class feature `label`. Otherwise empty.
        image: A function that returns the bytes of the image that is embedded in the annotation; None if there is none.
        split: The split that the annotation assigns to the image; None if it assigns no split.
    """

    file_name: str = ""
    values: Mapping[str, Any] | None = None
    label: str = ""
    image: Callable[[], bytes] | None = None
    split: str | None = None


class AnnotationSource(Source):
    """Base class for formats of annotation tools. They describe objects and sometimes the classes of entire images.

    By default, or with `--label objects`, the targets are the objects. If the format has classes of entire images,
    `--label NAME` selects such classes instead. `--label NAME,…:keypoints[N]` selects points by their labels.

    Attributes:
        file_format: The name of the format of annotation files, one of the constants in `label_files`.
        extensions: The extensions of annotation files, in lower case.
        folders: The usual names of folders of annotation files, in lower case.
        flags: A mapping from the name of each additional feature of objects to its kind.
        is_relative: Whether coordinates are fractions of the image size instead of pixels. If so, boxes and polygons are
            correct even if the annotations contain the image size before EXIF rotation.
        class_fields: The fields with classes of entire images that `--label` may select. None allows any field.
        has_points: Whether annotations may contain labeled points.
        has_attributes: Whether objects may have attributes, which `--label` selects in addition to the objects.
    """

    file_format: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]]
    folders: ClassVar[tuple[str, ...]]
    flags: ClassVar[Mapping[str, str]] = {}
    is_relative: ClassVar[bool] = False
    class_fields: ClassVar[Sequence[str] | None] = ()
    has_points: ClassVar[bool] = False
    has_attributes: ClassVar[bool] = False

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        source = options.source
        if source.labels is not None and not any(map(_is_objects, source.labels)):
            for option in ["--masks"] * source.has_masks + ["--corners"] * source.has_corners:
                raise UserError(f"{option}: needs objects. Omit it, or the option --label.")
        self._label_names = source.names_of(OBJECT_LABEL)
        self._root = self._find_root()
        self.root = self._root.path
        self._files = files_at(self.root)
        self._unused_points = UnusedPoints()
        self._set_targets(self._find_labels())

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Detects an annotation file by its first bytes, or a folder with such a file.

        In a folder, the first files with a usual extension are checked. Split folders and the usual folders of annotation
        files are also searched.
        """
        if not names.is_folder:
            is_recognised = names.name.lower().endswith(cls.extensions) and format_of_content(names.name, names.head()) == cls.file_format
            return Recognition(names.name, Certainty.CONTENT) if is_recognised else None
        for outer in (names, *names.below):
            for folder in filter(None, (outer, outer.folder(*cls.folders))):
                matching = (name for name in folder.files if name.lower().endswith(cls.extensions))
                for name, head in folder.heads(itertools.islice(matching, _NUM_CHECKED)):
                    if format_of_content(name, head) == cls.file_format:
                        return Recognition(name, Certainty.MARKER)
        return None

    def check_point_labels(self, found: Collection[str]) -> None:
        check_point_labels(self._point_columns, found)

    def _find_labels(self) -> Sequence[Column] | None:
        """Returns the label columns from `--label`. None selects the objects."""
        return self._options.source.labels

    def _find_root(self) -> Root:
        """Returns the folder that image paths are relative to."""
        return Root(self._options.source.image_root or self._options.input, self._options.follow_links)

    def _note(self, warning: str, num: int = 1) -> None:
        """Adds to the count of a warning. The count of files, lines or regions is printed before the text of the warning."""
        self.noted[warning] = self.noted.get(warning, 0) + num

    def _set_targets(self, labels: Sequence[Column] | None) -> None:
        """Sets the features and targets, given the label columns from `--label`. None selects the objects."""
        self._has_objects = labels is None or any(map(_is_objects, labels))
        columns = [column for column in labels or () if not _is_objects(column)]
        self._point_columns = [column for column in columns if self.has_points and form_of(column).is_points]
        others = [column for column in columns if column not in self._point_columns]
        may_be_attributes = others if self.has_attributes and self._has_objects else []
        attributes = [column for column in may_be_attributes if column.names[0] not in (self.class_fields or ())]
        self._attributes = ObjectAttributes(attributes, self._options.source, self.flags)
        self._class_columns = [column for column in others if column not in self._attributes.columns]
        for column in self._point_columns:
            check_point_column(column)
        for column in self._class_columns:
            self._check_class_column(column)
        source = self._options.source
        flags = {**self.flags, **self._attributes.kinds}
        objects = object_features(flags, source.has_masks, source.has_corners) if self._has_objects else ()
        columns = [column for column in columns if column not in self._attributes.columns]
        self.features = (*objects, *map(feature_of, columns))
        masks = [feature.name for feature in objects if feature.is_mask]
        self.targets = (*((OBJECTS, *masks) if objects else ()), *(column.name for column in columns))

    def _check_class_column(self, column: Column) -> None:
        name = printable(",".join(column.names))
        if self.class_fields is not None and column.names[0] not in self.class_fields or len(column.names) > 1:
            fields = ", ".join((*(self.class_fields or ()), OBJECTS, "none"))
            raise UserError(f"--label={name}: --source={self.kind.name} has no such field. Give one of {fields}.")
        if not form_of(column).is_names:
            raise UserError(f"--label={name}:{column.kind}: {name} contains class names. Use {name} or {name}:multi_label.")

    def _read_shapes(self, entries: Iterable[Any], read: Callable[[Any], Shape | None], noun: str = "shape") -> tuple[Shape, ...]:
        """Reads the objects of an image. Returns no shapes if the dataset has no objects.

        Args:
            entries: The entries of the shapes in the annotation file.
            read: A function that converts an entry to a shape. It returns None for shapes that are not kept, such as lines.
            noun: The noun for an entry in messages.

        Raises:
            InvalidInput: An entry is invalid. The message contains the number of the entry, starting at 1.
        """
        shapes = []
        for number, entry in enumerate(entries if self._has_objects or self._point_columns else (), 1):
            try:
                shapes.append(read(entry))
            except InvalidInput as error:
                raise InvalidInput(error.reason, f"{noun} {number} {error}") from None
        return tuple(filter(None, shapes))

    def _read_points(self, read: Callable[[], tuple[Any, Sequence[Point]]], visibility: float = 2.0) -> Shape | None:
        """Creates a shape that consists of points, given a function that reads the label and the points. Returns None
        for invalid points. If the dataset stores points, raises `InvalidInput` instead."""
        try:
            label, points = read()
            outline = Outline((0, 0, 0, 0), 0, [])
            return Shape(read_class(label), outline, {}, tuple((*point, visibility) for point in points), has_area=False)
        except InvalidInput:
            if self._point_columns:
                raise
            self.unused_fields.add(["points"])
            return None

    def _read_label(self, value: Any) -> str:
        """Returns the class name of a shape. Raises `InvalidInput` if the name is invalid or not in `--label_names`."""
        try:
            return known(read_class(value), self._label_names)
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"has an invalid class: {error}") from None

    def _make_annotation(
        self, file_name: str, shapes: Sequence[Shape], image_size: tuple[int, int] | None, classes: Mapping[str, Sequence[Any]] = {}
    ) -> Annotation:
        """Creates the annotation of an image.

        Args:
            file_name: The name of the image file, as written in the annotation.
            shapes: The objects.
            image_size: The (height, width) of the image in pixels, as written in the annotation; None if missing.
            classes: A mapping from each field with classes of the entire image to these classes.

        Raises:
            InvalidInput: A class is invalid, or an image that needs exactly one class has no class or several classes.
        """
        points = [(shape.label, point) for shape in shapes if not shape.has_area for point in shape.points]
        shapes = [shape for shape in shapes if shape.has_area]
        if self._point_columns:
            self.point_labels |= {label for label, _ in points}
        values = self._object_values(shapes, image_size) if self._has_objects else {}
        values |= {column.name: DrawnPoints(select_points(points, column), image_size) for column in self._point_columns}
        self._unused_points.add(points, self._point_columns, self.unused_fields, self._has_objects)
        label = ""
        for column in self._class_columns:
            value = self._read_classes(column, classes.get(column.names[0], ()))
            if column.name == LABEL and isinstance(value, str):
                label = value
            else:
                values[column.name] = value
        if self.features:
            used = {column.names[0] for column in self._class_columns}
            option = f"--label {OBJECTS} --label" if self._has_objects else "--label"
            unused = (field for field, found in classes.items() if found and field not in used)
            self.unused_fields.add(f"{field} (stored with {option} {shlex.quote(field)}:multi_label)" for field in unused)
        return Annotation(file_name, values or None, label)

    def _object_values(self, shapes: Sequence[Shape], image_size: tuple[int, int] | None) -> dict[str, Any]:
        """Returns the values of the features of objects. In a mask, smaller objects are drawn over larger objects."""
        labels = tuple(shape.label for shape in shapes)
        columns = {name: tuple(shape.flags[name] for shape in shapes) for name in (*self.flags, *self._attributes.kinds)}
        has_points = any(feature.name == f"{OBJECTS}/{KEYPOINTS}" for feature in (*self.features, *self.found_features))
        points = {KEYPOINTS: tuple(shape.points for shape in shapes)} if has_points else {}
        height, width = image_size if self.is_relative and image_size else (1, 1)
        if self._options.source.has_corners:
            points[CORNERS] = tuple(_corners(number, shape, height, width) for number, shape in enumerate(shapes, 1))
        sides = [shape.outline.box for shape in shapes]
        boxes = tuple((top / height, left / width, bottom / height, right / width) for top, left, bottom, right in sides)
        values: dict[str, Any] = {OBJECTS: Objects(boxes, labels, columns, image_size, self.is_relative, points)}
        if self._options.source.has_masks:
            order = sorted(shapes, key=lambda shape: -shape.outline.area)  # stable
            outlines = [shape.outline.region for shape in order]
            regions = tuple(divided(region, height, width) if self.is_relative else region for region in outlines)
            values[MASK] = Regions(tuple(shape.label for shape in order), regions, image_size, self.is_relative)
        return values

    def _read_classes(self, column: Column, classes: Sequence[Any]) -> str | tuple[str, ...]:
        """Returns the only class of an image, or all classes of the image if the column has the kind `multi_label`."""
        names, field = self._options.source.names_of(column.name), printable(column.names[0])
        try:
            found = sorted({known(read_class(item), names) for item in classes})
        except InvalidInput as error:
            raise InvalidInput(error.reason, f"{field} {error}") from None
        if not form_of(column).is_one_class:
            return tuple(found)
        if len(found) != 1:
            shown = f"{len(found)} classes ({printable(', '.join(found)[:80])})" if found else "no class"
            raise InvalidInput("bad_label", f"{field} has {shown}; it must have one (use {field}:multi_label for any number)")
        return found[0]


def absolute(path: str) -> str:
    """Returns the absolute path of an annotation file.

    Links in the path of its folder are resolved, but the file itself may be a link.
    """
    if is_remote(path):
        return path
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def file_bytes(path: str) -> int:
    """Returns the size of an annotation file in bytes. Raises `UserError` if the file cannot be read."""
    with read_errors(path):
        return files_at(path).size(path)


def _corners(number: int, shape: Shape, height: int, width: int) -> Points:
    try:
        (sides,) = divided([corners(shape.outline)], height, width)
    except InvalidInput as error:
        raise InvalidInput(error.reason, f"object {number} {error}") from None
    return tuple(zip(sides[::2], sides[1::2]))


def _is_objects(column: Column) -> bool:
    return column.names == (OBJECTS,)
