"""Source `tfrecord`: `tf.train.Example` records in TFRecord or ArrayRecord files from Recordmill or other tools. Only one
record at a time is in memory during listing."""

import contextlib
import dataclasses
import functools
from typing import Iterator

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.input_record import NO_IMAGE, InputRecord
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.input_names import Certainty, InputNames, Recognition
from beam_pipelines.sources.formats.tfrecord.record_directories import read_directory
from beam_pipelines.sources.formats.tfrecord.record_fields import (
    RecordObjects,
    add_image,
    read_cell,
    read_part,
    resolve_by_record,
    resolve_shapes,
)
from beam_pipelines.sources.formats.tfrecord.record_files import RecordFiles, VerbatimRecords
from beam_pipelines.sources.formats.tfrecord.record_layouts import Layout, choose_fields, find_layout, replace_image
from beam_pipelines.sources.rows.field_names import map_fields
from beam_pipelines.sources.source import Source
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, Record
from tf_input.dataset_format import OBJECTS
from tf_input.serialized_example import BadExampleError, SerializedExample

_VERBATIM = "To store records of any kind unchanged, pass --records=verbatim instead of options for their features."
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

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        directory = read_directory(options.input.rstrip("/") or "/", options.source.layout)
        super().__init__(options, spool_directory, directory and directory.files)
        self._first_problem = ""
        described = directory and directory.read_layout()
        example = self._first_example()
        self._layout = layout = self._find_layout(options, described)
        labels, features = choose_fields(options.source, layout)
        objects = [column for column in labels if column.names == (OBJECTS,) and layout.objects]
        self.targets = tuple(OBJECTS if column in objects else column.name for column in labels)
        self._objects = RecordObjects(layout.objects, options.source, layout.class_names) if objects else None
        labels = tuple(column for column in labels if column not in objects)
        labels, features = (resolve_shapes(columns, example, layout.shapes) for columns in (labels, features))
        source = dataclasses.replace(
            options.source,
            defaults={**layout.defaults, **options.source.defaults},
            key_column=layout.key if options.source.key_column is None else options.source.key_column,
            weight_column=layout.weight if options.source.weight_column is None else options.source.weight_column,
        )
        found_names = (first.features for first in self._first_examples())
        resolve = functools.partial(resolve_by_record, example)
        self._mapper = map_fields(source, labels, features, found_names, resolve, "records", self._objects, layout.class_names)
        self.has_images, self.features = bool(layout.image), self._mapper.features
        self.detected = layout.guess
        self._used = self._used_features(layout)

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        markers = ("dataset_info.json", "manifest.json") if names.is_folder else ()
        name = names.find(*markers, *_PATTERNS)
        return Recognition(name, Certainty.MARKER) if name else None

    @classmethod
    def variant(cls, source: SourceConfig) -> type[Source]:
        return VerbatimRecords if source.is_verbatim else cls

    def _used_features(self, layout: Layout) -> frozenset[str]:
        """Returns the names of the record features that Recordmill reads or computes."""
        sides = [layout.stated.items[side].names for side in layout.sides] if layout.stated else [("height", "width")]
        objects = (*layout.objects.boxes, layout.objects.label, *layout.objects.flags.values()) if layout.objects and self._objects else ()
        named = (layout.image, layout.key, *self._mapper.value_names, *self._mapper.part_names)
        return frozenset((*named, *objects, *(name for names in sides for name in names)))

    def _find_layout(self, options: PrepareOptions, layout: Layout | None) -> Layout:
        try:
            layout = layout or find_layout(self._first_examples(), options.source, self._files.names[0])
        except UserError as error:
            raise error if options.source.layout else UserError(f"{error} {_VERBATIM}") from None
        return replace_image(layout, options.source.image_column, self._first_examples()) if options.source.image_column else layout

    def _first_example(self) -> SerializedExample:
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

    def _first_examples(self) -> Iterator[SerializedExample]:
        for name in self._files.names:
            with contextlib.suppress(OutsideError), self._open_file(name) as file:
                for record in self._records(name, file):
                    try:
                        if isinstance(record, Record):
                            yield SerializedExample(record.data)
                    except BadExampleError as error:
                        self._first_problem = self._first_problem or printable(str(error))

    def list_record(self, part: str, name: str, record: Record) -> InputRecord:
        example, start = SerializedExample(record.data), record.offset + HEADER_BYTES
        image = add_image(InputRecord(name, part, "", self._files.splits.get(part), offset=NO_IMAGE), example, self._layout, start)
        row = {name: read_cell(name, example.values(name), name in self._mapper.list_names) for name in self._mapper.value_names}
        row |= {name: read_part(part, start, example, name, self._layout) for name in self._mapper.part_names}
        image = self._mapper.read({**row, OBJECTS: example} if self._objects else row, image)
        self.unused_fields.add(example.features.keys() - self._used)
        return image
