"""Source `tfrecord`: `tf.train.Example` records in TFRecord or ArrayRecord files from Recordmill or other tools. Only one
record at a time is in memory during listing."""

import contextlib
import dataclasses
import functools
from typing import Iterator, TypeVar

from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig, SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, ArrayPart, FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.sources.cells.array_cells import find_array_shapes
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
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
from beam_pipelines.sources.formats.tfrecord.record_files import AnySpoolWriter, RecordFiles
from beam_pipelines.sources.formats.tfrecord.record_layouts import Layout, choose_fields, find_layout, replace_image
from beam_pipelines.sources.formats.tfrecord.verbatim import VerbatimRecords
from beam_pipelines.sources.rows.field_names import check_fields, choose_roles, names_of_fields, search_names, wanted_names
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.source import Source
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record
from tf_input.dataset_format import OBJECTS

_VERBATIM = "To store records of any kind unchanged, pass --records=verbatim instead of options for their features."
_Part = TypeVar("_Part", FilePart, ArrayPart, InputRecord)
_PATTERNS = (
    *("*.tfrecord", "*.tfrecords", "*.tfrecord.gz", "*.tfrecords.gz", "*.tfrec", "*.record"),
    *("*.array_record*", "*.arrayrecord*"),
    *("*.tfrecord-*-of-*", "*-of-[0-9][0-9][0-9][0-9][0-9]", "*-of-[0-9][0-9][0-9][0-9][0-9][0-9]"),
)


class TfRecord(RecordFiles):
    """Lists the records of TFRecord and ArrayRecord files."""

    kind = SourceKind(
        name="tfrecord",
        summary="TFRecord and ArrayRecord files",
        options=(
            "labels", "label_names", "label_separator", "features", "has_images", "image_column", "key_column",
            "split_column", "group", "weight_column", "records", "layout", "defaults", "bad_boxes", "drawn_on",
        ),
        synonyms=("array_record", "arrayrecord", "tfds"),
    )

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        directory = read_directory(config.input.rstrip("/") or "/", config.source.layout)
        super().__init__(config, spool_directory, directory and directory.files)
        self._first_problem = ""
        example = self._first_example()
        layout = directory.layout if directory else self._find_layout(config)
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
        place = f"the first {num_searched:,} records"
        check_fields(*columns, found_names, place)
        columns = [find_array_shapes(some, functools.partial(resolve_by_record, example)) for some in columns]
        roles = choose_roles(source, *columns, found_names, place)
        names = names_of_fields(*columns, source, layout.class_names)
        self._mapper = RowMapper(*columns, source, roles=roles, objects=self._objects, class_names=names)
        self._key = layout.key if config.source.key_column is None else ""
        self.has_images = bool(layout.image)
        self.features = self._mapper.features
        self.detected, self.unused_fields = layout.guess, UnusedFields()
        self._used = self._used_features(layout)
        self.targets = tuple(OBJECTS if column in objects else column.name for column in labels)

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        markers = ("dataset_info.json", "manifest.json") if names.is_folder else ()
        name = names.find(*markers, *_PATTERNS)
        return Recognition(name, Certainty.MARKER) if name else None

    @classmethod
    def variant(cls, source: SourceConfig) -> type[Source]:
        return VerbatimRecords if source.is_verbatim else cls

    def _used_features(self, layout: Layout) -> frozenset[str]:
        """Returns the names of the record features that are read, or that Recordmill computes."""
        sides = [layout.stated.items[side].names for side in layout.sides] if layout.stated else [("height", "width")]
        objects = (*layout.objects.boxes, layout.objects.label, *layout.objects.flags.values()) if layout.objects and self._objects else ()
        named = (layout.image, layout.key, *self._mapper.value_names, *self._mapper.part_names)
        return frozenset((*named, *objects, *(name for names in sides for name in names)))

    def _find_layout(self, config: PrepareConfig) -> Layout:
        try:
            return find_layout(self._first_examples(), config.source, self._files.names[0])
        except UserError as error:
            raise error if config.source.layout else UserError(f"{error} {_VERBATIM}") from None

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
            f"--input={self.root}: no readable record in {len(self._files.names)} files (the first is "
            f"{self._files.names[0]!r}){reason}. Check that they are TFRecord files. {_VERBATIM}"
        )

    def _first_examples(self) -> Iterator[ExampleReader]:
        for name in self._files.names:
            with contextlib.suppress(OutsideError), self._open_file(name) as file:
                for record in self._records(name, file):
                    try:
                        if isinstance(record, Record):
                            yield ExampleReader(record.data)
                    except BadExampleError as error:
                        self._first_problem = self._first_problem or printable(str(error))

    def list_record(self, part: str, path: str, name: str, record: Record, spool: AnySpoolWriter | None) -> InputRecord | DeadLetter:
        try:
            example = ExampleReader(record.data)
            span = find_image(example, self._layout)
            image = self._read_fields(part, name, record, example, span)
            self.unused_fields.add(example.features.keys() - self._used)
        except BadExampleError as error:
            return DeadLetter(path, "list", "bad_record", printable(str(error)))
        except InvalidInput as error:
            return DeadLetter.of(path, error)
        return image if spool is None else _spool(image, record, spool)

    def _read_fields(self, part: str, name: str, record: Record, example: ExampleReader, span: ImageSpan | None) -> InputRecord:
        start = record.offset + HEADER_BYTES
        row = {name: read_cell(name, example.values(name), name in self._mapper.list_names) for name in self._mapper.value_names}
        row |= {name: read_part(part, start, example, name, self._layout) for name in self._mapper.part_names}
        image = InputRecord(
            key=read_key(example, self._key) if self._key else name,
            path=part,
            label="",
            split=self._files.splits.get(part),
            offset=NO_IMAGE,
        )
        if span is not None:
            image = image._replace(num_bytes=span.num_bytes, offset=start + span.offset, raw=span.raw)
        return self._mapper.read({**row, OBJECTS: example} if self._objects else row, image)


def _spool(image: InputRecord, record: Record, spool: AnySpoolWriter) -> InputRecord:
    """Copies the images and arrays of an input to a temporary file, and returns the input with the new offsets."""
    start = record.offset + HEADER_BYTES

    def move(part: _Part) -> _Part:
        data = record.data[part.offset - start : part.offset - start + part.num_bytes]
        return part._replace(offset=spool.append(data), spool=spool.spool)

    values = {name: move(item) if isinstance(item, (FilePart, ArrayPart)) else item for name, item in (image.values or {}).items()}
    image = image._replace(values=values or None)
    return image if image.offset == NO_IMAGE else move(image)

