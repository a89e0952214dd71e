"""Opens the source of a configuration."""

from beam_pipelines.config.prepare_config import PrepareConfig
from beam_pipelines.config.source_config import check_reserved_names
from beam_pipelines.elements.class_tables import check_class_options
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.listing.groups_and_strata import StrataReader
from beam_pipelines.sources.name_labels import NameLabels, without_name_labels
from beam_pipelines.sources.registry import source_classes
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import OBJECTS


def open_source(config: PrepareConfig, *, with_sizes: bool = False, spool_directory: str | None = None) -> Source:
    """Creates the source that a configuration specifies.

    Args:
        config: The options of the source.
        with_sizes: Whether to look up the size of each file. This takes one call per file on a disk, and listing
            requests in an object store.
        spool_directory: The directory for images from compressed containers; None if these images will not be read.

    Raises:
        UserError: The input does not have the format of the source, or an option is invalid for it.
    """
    source = source_classes()[config.source.kind.name].variant(config.source)
    try:
        own_config = without_name_labels(config) if config.label_pattern is not None else config
        opened = source(own_config, with_sizes=with_sizes, spool_directory=spool_directory)
    except OSError as error:
        raise listing_error(error, config.input, f"--input={printable(config.input)}: {error.strerror or error}") from error
    if config.label_pattern is not None:
        opened.name_labels = labels = NameLabels(opened.features, config)
        opened.features, opened.targets = (*opened.features, *labels.features), (*opened.targets, *labels.targets)
    has_images = config.source.has_images and (not config.source.kind.may_omit_images or opened.has_images)
    names = [feature.name for feature in opened.features]
    for column in (*(config.source.labels or ()), *config.source.features):
        is_objects = column.names == (OBJECTS,) or (column.name == OBJECTS and column.name not in names)  # `objects=COLUMN`
        if not is_objects:
            check_reserved_names(column.name, has_images)
    if not has_images:
        for feature in opened.features:
            if feature.is_spatial:
                raise UserError(
                    f"--image=none: {feature.name!r} is of kind {feature.kind}, which needs an image. Omit one of the two."
                )
    class_labels = [feature.name for feature in opened.features if feature.is_categorical]
    StrataReader(opened.features, config)
    masks = [feature.name for feature in opened.features if feature.is_mask and not config.source.has_masks]
    if not masks and (source_option := "mask_values" if config.source.mask_values else "mask_colors" if config.source.mask_colors is not None else ""):
        raise UserError(f"--{source_option}: the input has no masks. Omit it, or name the column of the masks with --label COLUMN:mask.")
    check_class_options(config.source, [name for name in class_labels if name.split("/")[0] in opened.targets], masks)
    return opened
