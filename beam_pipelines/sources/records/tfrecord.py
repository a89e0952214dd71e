"""Source `tfrecord`: records of `tf.train.Example`, as others wrote them, and as we do: to be shuffled and sharded anew.

They are in TFRecord or in ArrayRecord files, which are told apart by their first bytes.

| what is found | what becomes of it |
| --- | --- |
| a file, a pattern (`train-*.tfrecord`), a folder | see `containers` |
| in a folder: any other name than `*.tfrecord*`, `*.tfrec`, `*.record`, `*.array_record*`, `*-00000-of-00010` | ignored, and counted |
| a data set of TensorFlow Datasets, or our own | its splits, class names and features: see `record_directories` |
| another layout | found by the first 64 records, or `--layout`: see `record_layouts` |
| records of which `--feature` names all that is of bytes; `--image none` | examples of values alone |
| an image with a format; uint8 pixels | a pointer into the file; nothing is copied |
| a file that is compressed, as GZIP or ZLIB; an ArrayRecord file | its images, masks and arrays are spooled |
| no key | `FILE#INDEX`, unless `--key_column` names a feature, or the layout has one |
| integers for classes | they stay what they are, unless the data set or `--label_names` names them |
| all files named like splits, or shards (`dev-000000`) with `--split_folders=yes` | they are the splits, unless `--split_folders=no` |
| a damaged record, or one without a usable image | dead letter `FILE@OFFSET`, of an ArrayRecord file `FILE#INDEX`; see `record_reader` |
| a file that is neither, or an ArrayRecord file that is cut off | the run is refused |

Of the records that are listed one at a time is in memory.
"""

import contextlib
import dataclasses
import re
from typing import BinaryIO, Collection, Iterator, Mapping, TypeVar

from beam_pipelines.config.prepare_config import OBJECT_LABEL, PrepareConfig
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.labeled_image import NO_IMAGE, ArrayPart, FilePart, LabeledImage
from beam_pipelines.errors import Refusal, UserError, printable
from beam_pipelines.sources.cells.left_out import LeftOut
from beam_pipelines.sources.folders.file_listing import matches
from beam_pipelines.sources.folders.image_folder import nfc
from beam_pipelines.sources.folders.layouts import refuse_options
from beam_pipelines.sources.folders.roots import OutsideError, Root
from beam_pipelines.sources.records.containers import Containers, refuse_outside
from beam_pipelines.sources.records.record_directories import read_directory
from beam_pipelines.sources.records.record_fields import (
    ImageSpan,
    ObjectsReader,
    find_image,
    read_array_start,
    read_cell,
    read_key,
    read_part,
    settle_shapes,
)
from beam_pipelines.sources.records.record_layouts import Layout, choose_fields, find_layout, replace_image
from beam_pipelines.sources.records.row_reader import FieldReader, search_names, wanted_names
from beam_pipelines.storage.files import open_file
from beam_pipelines.storage.input_errors import listing_error
from beam_pipelines.storage.spool import ObjectSpoolWriter, SpoolWriter, own_spool
from beam_pipelines.tfrecord.array_record_reader import RecordFileReader, is_array_record
from beam_pipelines.tfrecord.example_reader import BadExampleError, ExampleReader
from beam_pipelines.tfrecord.record_reader import HEADER_BYTES, BadRecord, NoRecordsError, Record, is_compressed
from tf_input.dataset_format import OBJECTS, Feature

_NAME = re.compile(r".*(\.(tf|array_?)records?(\..*|[-_].*)?|\.tfrec|\.record|-\d+-of-\d+)(\.gz|\.zlib)?", re.IGNORECASE | re.DOTALL)
_Part = TypeVar("_Part", FilePart, ArrayPart, LabeledImage)
_OPTIONS = (
    *"has_images image_column key_column split_column group weight_column".split(),
    *"labels features label_names label_separator bad_boxes drawn_on layout defaults".split(),
)


class TfRecord:
    """The records of TFRecord and ArrayRecord files.

    Args:
        config: The options that say where the records lie, and what is in them.
        with_sizes: It changes nothing, as sizes are known in any case.
        spool_directory: The directory where what is pointed at in compressed files goes; None: nowhere.

    Attributes:
        root: The folder of the files.
        features: The features that an example has beside its image, key, height and width; class names are not known yet.
        targets: The names of those features that a model is to predict.
        found: The text to tell of a layout that was found by looking.
        left_out: The features of records that are not kept.
        num_ignored: The number of files that are no inputs, counted while a part is listed.

    Raises:
        UserError: There is no record, or none whose layout is known.
    """

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        refuse_options(config.source, tuple(_OPTIONS))
        self.num_ignored = 0
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
        columns = [settle_shapes(some, example, layout.shapes) for some in columns]
        wanted = wanted_names(config.source, *columns[0], *columns[1])
        found, num_searched = search_names((one.features for one in self._first_examples()), wanted)
        source = dataclasses.replace(config.source, defaults={**layout.defaults, **config.source.defaults})
        if source.weight_column is None:
            source = dataclasses.replace(source, weight_column=layout.weight)
        self._rows = FieldReader(
            source,
            *columns,
            self._root,
            found,
            f"the first {num_searched:,} records",
            layout.class_names,
            lambda name: read_array_start(example, name),
        )
        self._key = layout.key if config.source.key_column is None else ""
        self.has_images = bool(layout.image)
        self.features: tuple[Feature, ...] = self._rows.features + (self._objects.features if self._objects else ())
        self.found, self.left_out = layout.found, LeftOut()
        self._used = self._used_features(layout)
        self.targets = tuple(OBJECTS if column in objects else column.name for column in labels)

    def _used_features(self, layout: Layout) -> frozenset[str]:
        """Returns the features of records that are read, or that say what the reader finds out itself."""
        sides = [layout.stated.items[side].names for side in layout.sides] if layout.stated else [("height", "width")]
        objects = (*layout.objects.boxes, layout.objects.label, *layout.objects.flags.values()) if layout.objects and self._objects else ()
        named = (layout.image, layout.key, *self._rows.value_names, *self._rows.part_names)
        return frozenset((*named, *objects, *(name for names in sides for name in names)))

    def _open_input(self, config: PrepareConfig) -> None:
        """Finds which files there are, their splits, and what they say of themselves."""
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
            raise UserError(f"--input={config.input}: a data set without a shard; expected one or more")
        self.root = self._root.path

    def _first_example(self) -> ExampleReader:
        """Returns the first record of which all features can be read."""
        for example in self._first_examples():
            try:
                for name in example.features:
                    example.values(name)
                return example
            except BadExampleError as error:
                self._first_problem = self._first_problem or printable(str(error))
        reason = f": {self._first_problem}" if self._first_problem else ""
        raise UserError(
            f"--input={self._root.path}: no readable record in {len(self._names)} files, {self._names[0]!r} the first{reason}; expected one or more"
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
        """The class names that are known without an example, by feature: those that the records' layout or `--label_names` states."""
        names: dict[str, Collection[str]] = dict(self._rows.label_names)
        if self._objects and self._objects.class_names:
            names[f"{OBJECTS}/label"] = self._objects.class_names
        return names

    def parts(self) -> list[str]:
        """The names of the files, each of which is a part."""
        return [*self._names]

    def list(self, part: str) -> Iterator[LabeledImage | DeadLetter]:
        """The records of one file."""
        if self._containers:
            self.num_ignored, dead_letters = self._containers.beside(part)
            yield from dead_letters
        else:
            self.num_ignored = self._num_ignored if part == self._names[0] else 0
        if refused := refuse_outside(self._root, part):
            yield refused
            return
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._open(part))
            is_array = is_array_record(file)
            is_spooled = self._spool_directory and (is_array or is_compressed(file))
            spool = stack.enter_context(own_spool(self._spool_directory)) if is_spooled else None
            for index, record in enumerate(self._records(part, file)):
                path = f"{printable(part)}#{index:08d}" if is_array else f"{printable(part)}@{record.offset}"
                yield self._list_record(part, path, index, record, spool)

    def _list_record(
        self, part: str, path: str, index: int, record: Record | BadRecord, spool: SpoolWriter | ObjectSpoolWriter | None
    ) -> LabeledImage | DeadLetter:
        if isinstance(record, BadRecord):
            return DeadLetter(path, "list", "bad_record", record.message)
        try:
            example = ExampleReader(record.data)
            span = find_image(example, self._layout)
            image = self._read_fields(part, index, record, example, span)
            self.left_out.add(example.features.keys() - self._used)
        except BadExampleError as error:
            return DeadLetter(path, "list", "bad_record", printable(str(error)))
        except Refusal as error:
            return DeadLetter.of(path, error)
        return image if spool is None else _spool(image, record, spool)

    def _read_fields(self, part: str, index: int, record: Record, example: ExampleReader, span: ImageSpan | None) -> LabeledImage:
        start = record.offset + HEADER_BYTES
        row = {name: read_cell(name, example.values(name), name in self._rows.list_names) for name in self._rows.value_names}
        row |= {name: read_part(part, start, example, name, self._layout) for name in self._rows.part_names}
        image = LabeledImage(
            key=read_key(example, self._key) if self._key else nfc(f"{part}#{index:08d}"),
            path=part,
            label="",
            split=self._splits.get(part),
            offset=NO_IMAGE,
        )
        if span is not None:
            image = image._replace(num_bytes=span.num_bytes, offset=start + span.offset, raw=span.raw)
        image = self._rows.read(row, image)
        if self._objects:
            image = image._replace(values={**(image.values or {}), OBJECTS: self._objects.read(example)})
        return image


def _spool(image: LabeledImage, record: Record, spool: SpoolWriter | ObjectSpoolWriter) -> LabeledImage:
    """The image with all that it points at in its record in a spool instead."""
    start = record.offset + HEADER_BYTES

    def move(part: _Part) -> _Part:
        data = record.data[part.offset - start : part.offset - start + part.num_bytes]
        return part._replace(offset=spool.append(data), spool=spool.spool)

    values = {name: move(one) if isinstance(one, (FilePart, ArrayPart)) else one for name, one in (image.values or {}).items()}
    image = image._replace(values=values or None)
    return image if image.offset == NO_IMAGE else move(image)


def is_record_file(name: str) -> bool:
    """Whether a file is named like one of TFRecords, or of ArrayRecords."""
    return bool(_NAME.fullmatch(name))
