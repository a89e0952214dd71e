"""Source `tfrecord`: records of `tf.train.Example` in TFRecord or ArrayRecord files that Recordmill or another tool
wrote. The first bytes of a file determine its format. Only one record is in memory during listing."""

import contextlib
import dataclasses
import functools
import re
from typing import BinaryIO, Collection, Iterator, Mapping, TypeVar

from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, ArrayPart, FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.array_cells import find_array_shapes
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.file_listing import matches
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import OutsideError, Root
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.rows.containers import Containers, reject_outside
from beam_pipelines.sources.formats.tfrecord.record_directories import read_directory
from beam_pipelines.sources.formats.tfrecord.record_fields import (
    ImageSpan,
    ObjectsReader,
    find_image,
    read_cell,
    read_key,
    read_part,
    resolve_by_record,
    resolve_shapes,
)
from beam_pipelines.sources.formats.tfrecord.record_layouts import Layout, choose_fields, find_layout, replace_image
from beam_pipelines.sources.rows.field_names import choose_roles, names_of_fields, search_names, wanted_names
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error
from beam_pipelines.storage.spool import ObjectSpoolWriter, SpoolWriter, open_spool
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader, is_array_record
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, BadRecord, NoRecordsError, Record, is_compressed
from tf_input.dataset_format import OBJECTS, Feature

_NAME = re.compile(r".*(\.(tf|array_?)records?(\..*|[-_].*)?|\.tfrec|\.record|-\d+-of-\d+)(\.gz|\.zlib)?", re.IGNORECASE | re.DOTALL)
_Part = TypeVar("_Part", FilePart, ArrayPart, InputRecord)
_PATTERNS = (
    *("*.tfrecord", "*.tfrecords", "*.tfrecord.gz", "*.tfrecords.gz", "*.tfrec", "*.record"),
    *("*.array_record*", "*.arrayrecord*"),
    *("*.tfrecord-*-of-*", "*-of-[0-9][0-9][0-9][0-9][0-9]", "*-of-[0-9][0-9][0-9][0-9][0-9][0-9]"),
)


class TfRecord(Source):
    """Lists the records of TFRecord and ArrayRecord files.

    Args:
        config: The options of the source.
        with_sizes: Ignored: sizes are always known.
        spool_directory: The directory for images, masks and arrays of compressed files; None disables spooling.

    Attributes:
        root: The root folder of the files.
        features: The features of examples besides image, key, height and width. Class names are not known yet.
        targets: The names of the features that a model predicts.
        detected: A message about a detected layout.
        unused_fields: The features of records that are not kept.
        num_ignored: The number of files that are ignored, counted during listing.

    Raises:
        UserError: There is no readable record, or the layout is unknown.
    """

    kind = SourceKind(
        name="tfrecord",
        summary="TFRecord and ArrayRecord files",
        options=(
            "labels", "label_names", "label_separator", "features", "has_images", "image_column", "key_column",
            "split_column", "group", "weight_column", "layout", "defaults", "bad_boxes", "drawn_on",
        ),
        synonyms=("array_record", "arrayrecord", "tfds"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        self._spool_directory = spool_directory
        self._reader = RecordFileReader()
        self._first_problem = ""
        self._open_input(config)
        example = self._first_example()
        layout = self._known_layout or find_layout(self._first_examples(), config.source, self._names[0])
        if config.source.image_column:
            layout = replace_image(layout, config.source.image_column, self._first_examples())
        self._layout = layout
        labels, features = choose_fields(config.source, layout)
        objects = [column for column in labels if column.names == (OBJECTS,) and layout.objects]
        self._objects = None
        if objects:
            self._objects = ObjectsReader(layout.objects, layout.class_names, config.source.names_of(OBJECT_LABEL))
        columns = [tuple(column for column in some if column not in objects) for some in (labels, features)]
        columns = [resolve_shapes(some, example, layout.shapes) for some in columns]
        wanted = wanted_names(config.source, *columns[0], *columns[1])
        found_names, num_searched = search_names((first_example.features for first_example in self._first_examples()), wanted)
        source = dataclasses.replace(config.source, defaults={**layout.defaults, **config.source.defaults})
        if source.weight_column is None:
            source = dataclasses.replace(source, weight_column=layout.weight)
        columns = [find_array_shapes(some, functools.partial(resolve_by_record, example)) for some in columns]
        roles = choose_roles(source, *columns, found_names, f"the first {num_searched:,} records")
        names = names_of_fields(*columns, source, layout.class_names)
        self._rows = RowMapper(*columns, source, roles=roles, objects=self._objects, class_names=names)
        self._key = layout.key if config.source.key_column is None else ""
        self.has_images = bool(layout.image)
        self.features: tuple[Feature, ...] = self._rows.features
        self.detected, self.unused_fields = layout.guess, UnusedFields()
        self._used = self._used_features(layout)
        self.targets = tuple(OBJECTS if column in objects else column.name for column in labels)

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        """Recognises metadata of datasets, and the usual names of record files."""
        markers = ("dataset_info.json", "manifest.json") if names.is_folder else ()
        name = names.find(*markers, *_PATTERNS)
        return Recognition(name, Certainty.MARKER) if name else None


    def _used_features(self, layout: Layout) -> frozenset[str]:
        """Returns the names of the features that are read from records or computed by the reader."""
        sides = [layout.stated.items[side].names for side in layout.sides] if layout.stated else [("height", "width")]
        objects = (*layout.objects.boxes, layout.objects.label, *layout.objects.flags.values()) if layout.objects and self._objects else ()
        named = (layout.image, layout.key, *self._rows.value_names, *self._rows.part_names)
        return frozenset((*named, *objects, *(name for names in sides for name in names)))

    def _open_input(self, config: PrepareConfig) -> None:
        """Finds the record files with their splits and, if available, the dataset's metadata."""
        folder = config.input.rstrip("/") or "/"
        directory = read_directory(folder, config.source.layout)
        self._known_layout = directory.layout if directory else None
        self._containers = None
        if directory:
            self._root = Root(folder, config.follow_links)
            self._names = sorted(name for name in directory.files if not matches(name, config.ignore))
            self._num_ignored = len(directory.files) - len(self._names)
            self._splits: Mapping[str, str] = directory.files if config.split_folders is not False else {}
        else:
            self._containers = Containers(
                config, is_record_file, "files named *.tfrecord or *.array_record, or such as train-00000-of-00010"
            )
            self._root = self._containers.root
            self._names = self._containers.names
            self._splits = self._containers.splits()
        if not self._names:
            raise UserError(f"--input={config.input}: the dataset has no shards. Name another dataset.")
        self.root = self._root.path

    def _first_example(self) -> ExampleReader:
        """Returns the first record whose features can all be read."""
        for example in self._first_examples():
            try:
                for name in example.features:
                    example.values(name)
                return example
            except BadExampleError as error:
                self._first_problem = self._first_problem or printable(str(error))
        reason = f": {self._first_problem}" if self._first_problem else ""
        raise UserError(
            f"--input={self._root.path}: no readable record in {len(self._names)} files (the first is "
            f"{self._names[0]!r}){reason}. Check that they are TFRecord files."
        )

    def _first_examples(self) -> Iterator[ExampleReader]:
        for name in self._names:
            with contextlib.suppress(OutsideError), self._open(name) as file:
                for record in self._records(name, file):
                    try:
                        if isinstance(record, Record):
                            yield ExampleReader(record.data)
                    except BadExampleError as error:
                        self._first_problem = self._first_problem or printable(str(error))

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        path = f"{self.root}/{self._root.relative(name)}"
        try:
            with open_file(path) as file:
                yield file
        except OSError as error:
            raise listing_error(error, path, f"{printable(path)} cannot be read: {error.strerror or error}") from error

    def _records(self, name: str, file: BinaryIO) -> Iterator[Record | BadRecord]:
        try:
            yield from self._reader.read(f"{self.root}/{self._root.relative(name)}", file)
        except NoRecordsError as error:
            raise UserError(f"{printable(name)}: {error} (--ignore={printable(name)!r} leaves it out)") from None

    def label_names(self) -> Mapping[str, Collection[str]]:
        """Returns the class names of each feature, which come from the dataset's metadata or from `--label_names`."""
        return self._rows.label_names

    def parts(self) -> list[str]:
        """Returns the names of the files. Each file is listed as one part."""
        return [*self._names]

    def list(self, part: str) -> Iterator[InputRecord | DeadLetter]:
        """Yields the inputs of one file."""
        if self._containers:
            self.num_ignored, dead_letters = self._containers.describe_ignored(part)
            yield from dead_letters
        else:
            self.num_ignored = self._num_ignored if part == self._names[0] else 0
        if rejected := reject_outside(self._root, part):
            yield rejected
            return
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._open(part))
            is_array = is_array_record(file)
            is_spooled = self._spool_directory and (is_array or is_compressed(file))
            spool = stack.enter_context(open_spool(self._spool_directory)) if is_spooled else None
            for index, record in enumerate(self._records(part, file)):
                path = f"{printable(part)}#{index:08d}" if is_array else f"{printable(part)}@{record.offset}"
                yield self._list_record(part, path, index, record, spool)

    def _list_record(
        self, part: str, path: str, index: int, record: Record | BadRecord, spool: SpoolWriter | ObjectSpoolWriter | None
    ) -> InputRecord | DeadLetter:
        if isinstance(record, BadRecord):
            return DeadLetter(path, "list", "bad_record", record.message)
        try:
            example = ExampleReader(record.data)
            span = find_image(example, self._layout)
            image = self._read_fields(part, index, record, example, span)
            self.unused_fields.add(example.features.keys() - self._used)
        except BadExampleError as error:
            return DeadLetter(path, "list", "bad_record", printable(str(error)))
        except InvalidInput as error:
            return DeadLetter.of(path, error)
        return image if spool is None else _spool(image, record, spool)

    def _read_fields(self, part: str, index: int, record: Record, example: ExampleReader, span: ImageSpan | None) -> InputRecord:
        start = record.offset + HEADER_BYTES
        row = {name: read_cell(name, example.values(name), name in self._rows.list_names) for name in self._rows.value_names}
        row |= {name: read_part(part, start, example, name, self._layout) for name in self._rows.part_names}
        image = InputRecord(
            key=read_key(example, self._key) if self._key else nfc(f"{part}#{index:08d}"),
            path=part,
            label="",
            split=self._splits.get(part),
            offset=NO_IMAGE,
        )
        if span is not None:
            image = image._replace(num_bytes=span.num_bytes, offset=start + span.offset, raw=span.raw)
        return self._rows.read({**row, OBJECTS: example} if self._objects else row, image)


def _spool(image: InputRecord, record: Record, spool: SpoolWriter | ObjectSpoolWriter) -> InputRecord:
    """Copies the data of an image to a temporary file and returns the image reference with the new offset."""
    start = record.offset + HEADER_BYTES

    def move(part: _Part) -> _Part:
        data = record.data[part.offset - start : part.offset - start + part.num_bytes]
        return part._replace(offset=spool.append(data), spool=spool.spool)

    values = {name: move(item) if isinstance(item, (FilePart, ArrayPart)) else item for name, item in (image.values or {}).items()}
    image = image._replace(values=values or None)
    return image if image.offset == NO_IMAGE else move(image)


def is_record_file(name: str) -> bool:
    """Returns whether the name of a file is typical for TFRecord or ArrayRecord files."""
    return bool(_NAME.fullmatch(name))
