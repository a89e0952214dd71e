"""Source `webdataset`: tar files in which members with the same name, such as `a/0001.jpg` and `a/0001.cls`, form a
sample. Only a single sample is in memory at a time."""

import contextlib
import functools
import itertools
from typing import Any, Callable, Collection, Iterator

from beam_pipelines.config.columns import Column
from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.elements.dead_letters import DeadLetter
from beam_pipelines.elements.input_record import NO_IMAGE, FilePart, InputRecord
from beam_pipelines.errors import InvalidInput, UserError, printable
from beam_pipelines.images.tensor_values import npy_layout
from beam_pipelines.sources.cells.array_cells import find_array_shapes, holds_array, resolve_array
from beam_pipelines.sources.cells.box_forms import BoxForms
from beam_pipelines.sources.cells.unused_fields import UnusedFields
from beam_pipelines.sources.cells.objects import ObjectsColumn
from beam_pipelines.sources.files.archives import unpack_advice
from beam_pipelines.sources.files.keys import nfc
from beam_pipelines.sources.files.roots import OutsideError
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.sources.input_names import InputNames, Recognition
from beam_pipelines.sources.rows.containers import ContainerSource, find_containers
from beam_pipelines.sources.rows.field_names import check_fields, choose_roles, describe_names, search_names, unknown_name, wanted_names
from beam_pipelines.sources.rows.row_mapper import RowMapper
from beam_pipelines.sources.formats.webdataset.tar_reader import BadTarError, NoTarError, TarReader
from beam_pipelines.sources.formats.webdataset.tar_samples import SampleReader, TarSample
from beam_pipelines.sources.source import Source
from beam_pipelines.storage import MAX_FILE_BYTES
from beam_pipelines.storage.spool import ObjectSpoolWriter, SpoolWriter, open_spool
from beam_pipelines.tfrecord.record_reader import inflate
from tf_input.dataset_format import LABEL, OBJECTS

_HEADER_BYTES = 1 << 16  # more than the header of a `.npy` file

_IMAGES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "heic", "heif", "tif", "tiff", "avif", "jp2")
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

    def __init__(self, config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> None:
        super().__init__(config)
        self._ignore = config.ignore
        self._has_container_keys = config.source.key_column == ""
        self._spool_directory = spool_directory
        self._files = find_containers(config, is_tar_file, "files named *.tar, *.tar.gz or *.tgz")
        self.root = self._files.root.path
        self.has_images = config.source.has_images
        self._images = () if not self.has_images else (config.source.image_column.lower(),) if config.source.image_column else _IMAGES
        first, resolve = self._first_sample(config)
        labels, features = config.source.labels, config.source.features
        if labels is None:
            self._reject_class_folders(config)
            labels = _default_labels(first)
        self._objects, self.unused_fields, self.boxes = None, UnusedFields(), BoxForms()
        if any(_means_objects(label, first) for label in labels):
            some = itertools.islice(self._first_samples(config), _NUM_FIRST)
            objects = [sample.fields().get(OBJECTS) for _, sample in some]
            fields = {field for some_objects in objects for field in _fields_of(some_objects)}
            self._objects = ObjectsColumn(fields, config.source, {}, lambda: objects)
            self.unused_fields, self.boxes = self._objects.unused_fields, self._objects.boxes
            labels = tuple(item for item in labels if not _means_objects(item, first))
        if not self.has_images and not features:
            field_names = describe_names({*first.members, *first.fields()})
            raise UserError(f"--image=none: pass --feature for each field to keep. The first sample has {field_names}.")
        if any("json" in entry.names and entry.kind in ("class", "multi_label") for entry in labels):
            fields = describe_names(first.fields())
            raise UserError(
                f"--label=json: names the whole JSON of a sample. Choose one of its fields ({fields}), or use json:text."
            )
        wanted = wanted_names(config.source, *labels, *features)
        self.detected, self._companion_arrays = "", None
        if self._images is _IMAGES and _ARRAY in first.members and _ARRAY not in wanted:
            self._take_arrays(config, wanted)
        images = self._images if config.source.image_column else ()
        members: set[str] = set()
        samples = (members.update(sample.members) or {*sample.members, *sample.fields()} for _, sample in self._first_samples(config))
        found_names, num_searched = search_names(samples, wanted.union(images))
        shown_source = f"the first {num_searched:,} samples"
        if not members.issuperset(images):
            raise unknown_name("--image_column", images[0], members, shown_source)
        check_fields(labels, features, found_names, shown_source)
        labels, features = (find_array_shapes(columns, resolve) for columns in (labels, features))
        roles = choose_roles(config.source, labels, features, found_names, shown_source)
        self._mapper = RowMapper(labels, features, config.source, roles=roles, objects=self._objects)
        self.features, self.targets = self._mapper.features, self._mapper.targets
        self._uses_json = self._objects is not None or not {*self._mapper.value_names, *self._mapper.part_names} <= members
        used = {*self._mapper.value_names, *self._mapper.part_names, *(["json"] if self._uses_json else [])}
        self._used = {*used, *([OBJECTS] if self._objects else []), *(f".{name}" for name in (*used, *self._images))}
        self._texts = frozenset({*self._mapper.value_names, *(["json"] if self._uses_json else [])})

    @classmethod
    def recognise(cls, names: InputNames) -> Recognition | None:
        name = names.find("*.tar", "*.tar.gz", "*.tgz")
        return Recognition(name) if name else None

    def _take_arrays(self, config: PrepareConfig, wanted: Collection[str]) -> None:
        """Uses `.npy` members as images if none of the first samples contains an image file. Raises `UserError` if other
        members may also be the images."""
        some = [sample.members.keys() for _, sample in itertools.islice(self._first_samples(config), _NUM_FIRST)]
        members, companions = set().union(*some), frozenset({_ARRAY, *_NO_IMAGES, *wanted})
        if not members.isdisjoint(_IMAGES):
            return
        shown_source = f"the first {len(some):,} samples"
        if others := sorted(members - companions):
            raise UserError(
                f"{shown_source} have no image file, but .{_ARRAY} and {describe_names(others)}, and any of these could be "
                f"the image. Use --image_column={_ARRAY}, --image_column={printable(others[0])[:64]}, or --image=none."
            )
        self._images, self._companion_arrays = (_ARRAY,), companions
        self.detected = f"--image_column={_ARRAY} ({shown_source} have no image file and no other possible image)"

    def _reject_class_folders(self, config: PrepareConfig) -> None:
        """Raises `UserError` if all members of the first samples are images in folders, as in class folders."""
        name, some = "", []
        for name, sample in itertools.islice(self._first_samples(config), _NUM_FIRST):
            if "/" not in sample.key or len(sample.members) > 1 or not sample.members.keys() <= set(_IMAGES):
                return
            some.append(f"{sample.key}.{next(iter(sample.members))}")
        if some:
            path = config.input if is_tar_file(config.input) else f"{self.root}/{self._files.root.relative(name)}"
            tops = {entry.split("/")[0] if entry.count("/") > 1 else "" for entry in some}
            top = tops.pop() if len(tops) == 1 else ""
            advice = unpack_advice(path, "" if top.lower() in SPLIT_FOLDERS else top)
            raise UserError(
                f"--input={printable(config.input)}: contains images in folders, such as {printable(some[0])!r}, but no labels beside them, so "
                f"it is not a WebDataset. {advice} To read the images without labels, pass --label none."
            )

    def _first_sample(self, config: PrepareConfig) -> tuple[TarSample, Callable[[Column], Column]]:
        """Returns the first readable sample, and a function that completes array columns from this sample."""
        for name, sample in self._first_samples(config):
            return sample, functools.partial(self._resolve, name, sample)
        raise UserError(
            f"--input={config.input}: no readable sample in {len(self._files.names)} files. The members of a "
            "sample must share a name, such as 1.jpg and 1.cls."
        )

    def _first_samples(self, config: PrepareConfig) -> Iterator[tuple[str, TarSample]]:
        for name in self._files.names:
            with contextlib.suppress(OutsideError), self._open(name) as (tar, _):
                for sample in SampleReader(tar, name, ("cls", "json", "txt"), ignore=config.ignore):
                    if isinstance(sample, TarSample) and sample.is_readable():
                        yield name, sample

    def _resolve(self, name: str, sample: TarSample, column: Column) -> Column:
        member = sample.members.get(column.names[0])
        if member is None:
            if holds_array(field := sample.fields().get(column.names[0])):
                return resolve_array(column, field)
            raise InvalidInput("bad_array", "this member is missing")
        try:
            with self._open(name) as (tar, _):
                return resolve_array(column, tar.read(member._replace(num_bytes=min(member.num_bytes, _HEADER_BYTES))))
        except BadTarError as error:
            raise InvalidInput("bad_array", str(error)) from None

    def _list_file(self, name: str) -> Iterator[InputRecord | DeadLetter]:
        with contextlib.ExitStack() as stack:
            tar, is_compressed = stack.enter_context(self._open(name))
            spool = stack.enter_context(open_spool(self._spool_directory)) if is_compressed and self._spool_directory else None
            starts = {extension for extension in self._images if extension.endswith(_ARRAY)}
            samples = SampleReader(tar, name, self._texts, {*self._images, *self._mapper.part_names}, starts, spool, self._ignore)
            for sample in samples:
                yield sample if isinstance(sample, DeadLetter) else self._list_sample(name, sample, spool)
            self.num_ignored += samples.num_ignored

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[tuple[TarReader, bool]]:
        """Opens a tar file, and yields its reader and whether the file is compressed."""
        with self._open_file(name) as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            try:
                yield TarReader(inflate(file) if is_compressed else file, not is_compressed), is_compressed
            except NoTarError as error:
                raise UserError(f"{printable(f'{self.root}/{self._files.root.relative(name)}')}: {error} (--ignore={printable(name)!r} leaves it out)") from None

    def _list_sample(self, part: str, sample: TarSample, spool: SpoolWriter | ObjectSpoolWriter | None) -> InputRecord | DeadLetter:
        try:
            if sample.rejection:
                raise InvalidInput(*sample.rejection)
            key = nfc(f"{part}/{sample.key}" if self._has_container_keys else sample.key)
            image = InputRecord(key=key, path=part, label="", split=self._files.splits.get(part), offset=NO_IMAGE)
            if self.has_images:
                extension = self._image_of(sample)
                member_range = _find_member(part, sample, extension, spool)
                raw = npy_layout(sample.starts[extension])[0] if extension in sample.starts else None
                image = image._replace(num_bytes=member_range.num_bytes, offset=member_range.offset, raw=raw, spool=member_range.spool)
            row = self._make_row(part, sample, spool)
            self.unused_fields.add(name for name in (*row, *(f".{name}" for name in sample.members)) if name not in self._used)
            return self._mapper.read(row, image)
        except InvalidInput as error:
            return DeadLetter.of(f"{printable(part)}:{sample.key}", error)

    def _image_of(self, sample: TarSample) -> str:
        """Returns the extension of a sample's image. Raises `InvalidInput` if there is no image, or the image is
        ambiguous."""
        extension = next((extension for extension in self._images if extension in sample.members), None)
        if extension is None:
            message = f"no image ({', '.join(self._images)}) but only {describe_names(sample.members)}"
            raise InvalidInput("no_image", f"{message} (use --image none for examples without images)")
        if self._companion_arrays is not None and (others := sample.members.keys() - self._companion_arrays):
            advice = f"name the image with --image_column, such as --image_column={_ARRAY}"
            raise InvalidInput("ambiguous", f"{describe_names(others)} beside .{_ARRAY}, unlike other samples; {advice}")
        return extension

    def _make_row(self, part: str, sample: TarSample, spool: SpoolWriter | ObjectSpoolWriter | None) -> dict[str, Any]:
        row = sample.fields() if self._uses_json else {}
        for extension in self._mapper.value_names:
            if extension in sample.texts:
                row[extension] = sample.text(extension)
        for extension in self._mapper.part_names:
            if extension in sample.members:
                row[extension] = _find_member(part, sample, extension, spool)
        return row


def _find_member(part: str, sample: TarSample, extension: str, spool: SpoolWriter | ObjectSpoolWriter | None) -> FilePart:
    """Returns the position of a member's data in the tar file or in the spool. Raises `InvalidInput` if the member is too
    large."""
    member = sample.members[extension]
    if member.num_bytes > MAX_FILE_BYTES:
        raise InvalidInput("too_large", f".{extension} has {member.num_bytes} bytes; the limit is {MAX_FILE_BYTES}")
    if spool is None:
        return FilePart(part, member.offset, member.num_bytes)
    return FilePart(part, sample.spooled[extension], member.num_bytes, spool.spool)


def is_tar_file(name: str) -> bool:
    """Returns whether a file has an extension of tar files."""
    return name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def _default_labels(first: TarSample) -> tuple[Column, ...]:
    fields = first.fields()
    usual = next((name for name in _LABELS if name in fields), OBJECTS if _object_fields(first) else None)
    name = "cls" if "cls" in first.members else usual
    if name is None:
        field_names = describe_names({*first.members, *fields})
        raise UserError(f"The first sample has no label, but {field_names}. Pass --label with one of them, or --label none.")
    return (Column(LABEL if name != OBJECTS else OBJECTS, (name,)),)


def _means_objects(column: Column, first: TarSample) -> bool:
    return column.kind == "class" and column.names == (OBJECTS,) and bool(_object_fields(first))


def _object_fields(first: TarSample) -> set[str]:
    """Returns the names of the fields that describe the objects in a sample. Empty if the sample has no objects."""
    return _fields_of(first.fields().get(OBJECTS))


def _fields_of(objects: Any) -> set[str]:
    return {field for item in (objects if isinstance(objects, list) else [objects]) if isinstance(item, dict) for field in item}
