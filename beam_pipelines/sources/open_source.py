"""Opens the source that a configuration names."""

import importlib

from beam_pipelines.config.prepare_config import PrepareConfig, check_own_names
from beam_pipelines.elements.class_tables import check_heads
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.groups_and_strata import StrataReader
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import OBJECTS

# Kind -> module and class; imported when it is needed, because each has a format's library behind it.
_SOURCES = {
    "image_folder": ("folders.image_folder", "ImageFolder"),
    "table": ("tables.table", "Table"),
    "voc": ("annotated.voc", "Voc"),
    "coco": ("annotated.coco", "Coco"),
    "masks": ("annotated.masks", "Masks"),
    "arrays": ("arrays.array_files", "Arrays"),
    "fixed_length": ("arrays.fixed_length", "FixedLength"),
    "text": ("tables.text", "TextList"),
    "text_lines": ("tables.text_lines", "TextLines"),
    "tfrecord": ("records.tfrecord", "TfRecord"),
    "webdataset": ("records.webdataset", "WebDataset"),
}


def open_source(config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> Source:
    """The source of a settled configuration: one whose kind is known.

    Args:
        config: The options that say where the input lies, and what is in it.
        with_sizes: Each file's size is wanted too, at the cost of a look at it, or of a listing in a store.
        spool_directory: Where images go whose container is compressed; None: nowhere, since nobody will read them.

    Raises:
        UserError: The input is not of that kind, or an option does not go with it.
    """
    module, name = _SOURCES[config.source.kind]
    source = getattr(importlib.import_module(f"beam_pipelines.sources.{module}"), name)
    try:
        opened = source(config, with_sizes=with_sizes, spool_directory=spool_directory)
    except OSError as error:
        raise listing_error(error, config.input, f"--input={printable(config.input)}: {error.strerror or error}") from error
    has_images = config.source.has_images and (not config.source.can.may_lack_images or opened.has_images)
    for column in (*(config.source.labels or ()), *config.source.features):
        if column.names != (OBJECTS,):
            check_own_names(column.name, has_images)
    if not has_images:
        for feature in opened.features:
            if feature.kind in ("mask", "bbox"):
                raise UserError(f"--image=none: {feature.name!r} belongs to an image; expected images, or numbers, classes and texts")
    class_labels = [feature.name for feature in opened.features if feature.kind == "class_label"]
    StrataReader(opened.features, config)
    check_heads(config.source, [name for name in class_labels if name.split("/")[0] in opened.targets])
    return opened
