"""Opens the source that a configuration names."""

import importlib

from beam_pipelines.config import PrepareConfig, SourceConfig
from beam_pipelines.errors import UserError
from beam_pipelines.files import is_remote
from beam_pipelines.sources import Source

# Kind -> module and class; imported when it is needed, because each has a format's library behind it.
_SOURCES = {
    "image_folder": ("image_folder", "ImageFolder"),
    "table": ("tables.table", "Table"),
    "voc": ("annotated.voc", "Voc"),
    "coco": ("annotated.coco", "Coco"),
    "masks": ("annotated.masks", "Masks"),
    "arrays": ("arrays.array_files", "Arrays"),
    "fixed_length": ("arrays.fixed_length", "FixedLength"),
    "text": ("tables.text", "TextList"),
    "tfrecord": ("records.tfrecord", "TfRecord"),
    "webdataset": ("records.webdataset", "WebDataset"),
}

_TABLES = ("table", "text", "tfrecord", "webdataset", "arrays", "fixed_length")
# Field of a SourceConfig -> its option and the kinds that it goes with.
_OPTIONS = {
    "image_root": ("--image_root", ("table", "text", "coco")),
    "image_column": ("--image_column", ("table", "tfrecord", "webdataset", "arrays", "fixed_length")),
    "key_column": ("--key_column", ("table", "tfrecord", "webdataset")),
    "split_column": ("--split_column", ("table",)),
    "group_column": ("--group_column", ("table", "tfrecord", "webdataset")),
    "weight_column": ("--weight_column", ("table", "tfrecord", "webdataset")),
    "features": ("--feature", _TABLES),
    "bad_boxes": ("--bad_boxes", ("voc", "coco", "table", "tfrecord")),
    "has_masks": ("--masks", ("coco",)),
    "layout": ("--layout", ("tfrecord", "fixed_length")),
    "header_bytes": ("--header_bytes", ("fixed_length",)),
    "footer_bytes": ("--footer_bytes", ("fixed_length",)),
    "skip_lines": ("--skip_lines", ("text", "table")),
    "comment": ("--comment", ("text", "table")),
}


def open_source(config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> Source:
    """The source of a settled configuration: one whose kind is known.

    Args:
        config: Where it lies, and what is in it.
        with_sizes: Each file's size is wanted too, at the cost of a look at it.
        spool_directory: Where images go whose container is compressed; None: nowhere, since nobody will read them.

    Raises:
        UserError: The input is not of that kind, or an option does not go with it.
    """
    _check_options(config.source)
    module, name = _SOURCES[config.source.kind]
    if config.source.kind == "image_folder" and is_remote(config.input):
        module, name = "image_objects", "ImageObjects"
    source = getattr(importlib.import_module(f"beam_pipelines.sources.{module}"), name)
    return source(config, with_sizes=with_sizes, spool_directory=spool_directory)


def _check_options(config: SourceConfig) -> None:
    """An option that a source has no use for was a mistake, and is not ignored."""
    default = SourceConfig()
    for field, (option, kinds) in _OPTIONS.items():
        if config.kind not in kinds and getattr(config, field) != getattr(default, field):
            raise UserError(f"{option}: --source={config.kind} has no use for it; it goes with {', '.join(kinds)}")
    if config.labels and config.kind not in _TABLES:
        raise UserError(f"--label: --source={config.kind} has no columns; expected --label=none, or no --label")
