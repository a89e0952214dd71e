"""Source `webdataset`: tar files in which members with the same name, such as `a/0001.jpg` and `a/0001.cls`, form a
sample. Only a single sample is in memory at a time."""

import contextlib
import functools
import itertools
from typing import Any, Collection, Iterator

from beam_pipelines.columns.column import Column
from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.columns.forms import form_of
from beam_pipelines.images.arrays import npy_layout
from beam_pipelines.sources.cells.array_cells import holds_array, resolve_array
from beam_pipelines.sources.cells.objects import ObjectsColumn
from beam_pipelines.sources.files.embedded_images import Embedded, spool_images
from beam_pipelines.sources.files.read_advice import unpack_advice
from beam_pipelines.sources.files.paths import nfc
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.rows.containers import ContainerSource, find_containers
from beam_pipelines.sources.rows.field_names import describe_names, map_fields, search_names, unknown_name, wanted_names
from beam_pipelines.sources.formats.webdataset.tar_reader import NoTarError, TarReader
from beam_pipelines.sources.formats.webdataset.tar_samples import SampleReader, TarSample
from beam_pipelines.tfrecord.record_reader import inflate
from tf_input.dataset_format import IMAGE, LABEL, OBJECTS

_IMAGES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "heic", "heif", "tif", "tiff", "avif", "jp2", "ppm", "pgm", "pnm")
_ARRAY = "npy"
_NO_IMAGES = frozenset({"cls", "txt", "json"})  # extensions of members that are never images
_NUM_FIRST = 100  # number of samples to search for images and for fields of objects
_LABELS = ("label", "class", "cls")


class WebDataset(ContainerSource):
    """Lists the samples in tar files."""

    kind = SourceKind(
        name="webdataset",
        summary="tar files",
        options=(
            "labels", "label_names", "label_separator", "features", "has_images", "image_column", "key_column",
            "split_column", "group", "weight_column", "defaults", "bad_boxes", "drawn_on", "box_format", "box_unit",
        ),
        synonyms=("tar", "wds"),
        has_named_samples=True,
    )

    def __init__(self, options: PrepareOptions, spool_directory: str | None = None) -> None:
        super().__init__(options, spool_directory)
        source = options.source
        self._files = find_containers(options, is_tar_file, "files named *.tar, *.tar.gz or *.tgz")
        self.root, self.has_images = self._files.root.path, source.has_images
        labels, features = source.labels, source.features
        arrays = {column.names[0] for column in (*(labels or ()), *features) if not form_of(column).is_resolved(column)}
        first = self._first_sample(arrays)
        if labels is None:
            labels = self._default_labels(first)
        if not self.has_images and not features:
            field_names = describe_names({*first.parts, *first.fields()})
            raise UserError(f"--image=none: pass --feature for each field to keep. The first sample has {field_names}.")
        if any("json" in entry.names and form_of(entry).is_names for entry in labels):
            fields = describe_names(first.fields())
            raise UserError(
                f"--label=json: names the whole JSON of a sample. Choose one of its fields ({fields}), or use json:text."
            )
        labels, objects = self._take_objects(labels, first)
        self._choose_images(first, wanted_names(source, *labels, *features))
        members: set[str] = set()
        found = (members.update(sample.parts) or {*sample.parts, *sample.fields()} for sample in self._first_samples())
        self._mapper = map_fields(source, labels, features, found, functools.partial(_resolve, first), "samples", objects)
        self.features, self.targets = self._mapper.features, self._mapper.targets
        names = {*self._mapper.value_names, *self._mapper.part_names}
        self._uses_json = objects is not None or not names <= members
        self._texts = frozenset({*self._mapper.value_names, *(["json"] if self._uses_json else [])})
        used = {*names, *self._texts}
        self._used = {*used, *([OBJECTS] if objects else []), *(f".{name}" for name in (*used, *self._images))}

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        name = names.find("*.tar", "*.tar.gz", "*.tgz")
        return Recognition(name) if name else None

    def _take_objects(self, labels: tuple[Column, ...], first: TarSample) -> tuple[tuple[Column, ...], ObjectsColumn | None]:
        """Returns the labels without `objects`, and a reader of the objects (None if there are no objects)."""
        has_objects = bool(_fields_of(first.fields().get(OBJECTS)))
        others = tuple(label for label in labels if not has_objects or label.names != (OBJECTS,) or not form_of(label).is_class)
        if others == labels:
            return labels, None
        cells = [sample.fields().get(OBJECTS) for sample in itertools.islice(self._first_samples(), _NUM_FIRST)]
        fields = {field for cell in cells for field in _fields_of(cell)}
        objects = ObjectsColumn(fields, self._options.source, {}, lambda: cells)
        self.unused_fields, self.boxes = objects.unused_fields, objects.boxes
        return others, objects

    def _choose_images(self, first: TarSample, wanted: Collection[str]) -> None:
        """Chooses the file extensions of images. If the first samples contain no image files, their `.npy` files are
        the images. Raises `UserError` if other members could also be the images, or `--image_column` names no
        member."""
        column = self._options.source.image_column
        self.detected, self._companion_arrays = "", None
        self._images = () if not self.has_images else (column.lower(),) if column else _IMAGES
        if column and self.has_images:
            members, num = search_names((sample.parts for sample in self._first_samples()), self._images)
            if self._images[0] not in members:
                raise unknown_name("--image_column", self._images[0], members, f"the first {num:,} samples")
        if self._images is not _IMAGES or _ARRAY not in first.parts or _ARRAY in wanted:
            return
        some = [sample.parts.keys() for sample in itertools.islice(self._first_samples(), _NUM_FIRST)]
        members, companions = set().union(*some), frozenset({_ARRAY, *_NO_IMAGES, *wanted})
        if not members.isdisjoint(_IMAGES):
            return
        place = f"the first {len(some):,} samples"
        if others := sorted(members - companions):
            raise UserError(
                f"{place} have no image file, but .{_ARRAY} and {describe_names(others)}, and any of these could be "
                f"the image. Use --image_column={_ARRAY}, --image_column={printable(others[0])[:64]}, or --image=none."
            )
        self._images, self._companion_arrays = (_ARRAY,), companions
        self.detected = f"--image_column={_ARRAY} ({place} have no image file and no other possible image)"

    def _default_labels(self, first: TarSample) -> tuple[Column, ...]:
        fields = first.fields()
        name = "cls" if "cls" in first.parts else next((name for name in _LABELS if name in fields), "")
        if name or _fields_of(fields.get(OBJECTS)):
            return (Column(LABEL, (name,)) if name else Column(OBJECTS, (OBJECTS,)),)
        message = f"The first sample has no label, but {describe_names({*first.parts, *fields})}."
        if "/" in first.key and first.parts.keys() <= set(_IMAGES):
            path = self._options.input if is_tar_file(self._options.input) else f"{self.root}/{self._files.names[0]}"
            message = f"--input={printable(self._options.input)}: {message} If its folders are classes: {unpack_advice(path)}"
        raise UserError(f"{message} Pass --label with the name of a label, or --label none.")

    def _first_sample(self, arrays: Collection[str]) -> TarSample:
        """Returns the first readable sample, with the first bytes of the given arrays."""
        for sample in self._first_samples(arrays):
            return sample
        raise UserError(
            f"--input={self._options.input}: no readable sample in {len(self._files.names)} files. The members of a "
            "sample must share a name, such as 1.jpg and 1.cls."
        )

    def _first_samples(self, arrays: Collection[str] = ()) -> Iterator[TarSample]:
        for name in self._files.names:
            with contextlib.suppress(OutsideError), self._open(name) as (tar, _):
                for sample in SampleReader(tar, name, ("cls", "json", "txt"), starts=arrays, ignore=self._options.ignore):
                    if isinstance(sample, TarSample) and sample.is_readable():
                        yield sample

    def _list_file(self, name: str) -> Iterator[InputRecord | DeadLetter]:
        with self._open(name) as (tar, is_compressed):
            starts = {extension for extension in self._images if extension.endswith(_ARRAY)}
            parts = {*self._images, *self._mapper.part_names} if is_compressed and self._spool_directory else ()
            samples = SampleReader(tar, name, self._texts, starts, parts, self._options.ignore)
            listed = (sample if isinstance(sample, DeadLetter) else self._list_sample(name, sample, is_compressed) for sample in samples)
            yield from spool_images(listed, self._spool_directory)
            self.num_ignored += samples.num_ignored

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[tuple[TarReader, bool]]:
        """Opens a tar file and yields its reader and whether the file is compressed."""
        with self._open_file(name) as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            try:
                yield TarReader(inflate(file) if is_compressed else file, not is_compressed), is_compressed
            except NoTarError as error:
                path = printable(f"{self.root}/{self._files.root.relative(name)}")
                raise UserError(f"{path}: {error}. Replace the file, or move it out of the input.") from None

    def _list_sample(self, part: str, sample: TarSample, is_compressed: bool) -> InputRecord | DeadLetter | Embedded:
        try:
            if sample.rejection:
                raise InvalidInput(*sample.rejection)
            key = nfc(f"{part}/{sample.key}" if self._options.source.key_column == "" else sample.key)
            image = InputRecord(key=key, path=part, label="", split=self._files.splits.get(part), offset=NO_IMAGE)
            if self.has_images:
                extension = self._image_of(sample)
                location = sample.part(extension)
                raw = npy_layout(sample.data[extension]) if extension.endswith(_ARRAY) else None
                image = image._replace(num_bytes=location.num_bytes, offset=location.offset, raw=raw)
            row = sample.fields() if self._uses_json else {}
            row |= {name: sample.text(name) for name in self._mapper.value_names if name in sample.data}
            row |= {name: sample.part(name) for name in self._mapper.part_names if name in sample.parts}
            self.unused_fields.add(name for name in (*row, *(f".{name}" for name in sample.parts)) if name not in self._used)
            image = self._mapper.read(row, image)
            return self._embed(image, sample) if is_compressed and self._spool_directory else image
        except InvalidInput as error:
            return DeadLetter.of(f"{printable(part)}:{sample.key}", error)

    def _embed(self, image: InputRecord, sample: TarSample) -> Embedded:
        """Returns the input of a sample with the bytes of its images and arrays."""
        members = {column.name: column.names[0] for column in self._mapper.columns if column.names[0] in self._mapper.part_names}
        if image.offset != NO_IMAGE:
            members[IMAGE] = self._image_of(sample)
        return Embedded(image, {name: sample.data[member] for name, member in members.items() if member in sample.parts})

    def _image_of(self, sample: TarSample) -> str:
        """Returns the extension of a sample's image. Raises `InvalidInput` if there is no image, or the image is
        ambiguous."""
        extension = next((extension for extension in self._images if extension in sample.parts), None)
        if extension is None:
            message = f"no image ({', '.join(self._images)}) but only {describe_names(sample.parts)}"
            raise InvalidInput("no_image", f"{message} (use --image none for examples without images)")
        if self._companion_arrays is not None and (others := sample.parts.keys() - self._companion_arrays):
            advice = f"name the image with --image_column, such as --image_column={_ARRAY}"
            raise InvalidInput("ambiguous", f"{describe_names(others)} beside .{_ARRAY}, unlike other samples; {advice}")
        return extension


def is_tar_file(name: str) -> bool:
    """Returns whether a file name has the extension of a tar file."""
    return name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def _resolve(sample: TarSample, column: Column) -> Column:
    """Determines the shape and dtype of an array column from the first sample."""
    name = column.names[0]
    if name in sample.data:
        return resolve_array(column, sample.data[name])
    if holds_array(field := sample.fields().get(name)):
        return resolve_array(column, field)
    raise InvalidInput("bad_array", "this member is missing")


def _fields_of(objects: Any) -> set[str]:
    """Returns the names of the fields that describe objects. Empty if there are no objects."""
    items = objects if isinstance(objects, list) else [objects]
    return {field for item in items if isinstance(item, dict) for field in item}
