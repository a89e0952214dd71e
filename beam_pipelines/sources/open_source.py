"""Opens the source of a configuration."""

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.columns.forms import check_reserved_names
from beam_pipelines.elements.class_tables import check_class_options
from beam_pipelines.errors import UserError, printable
from beam_pipelines.sources.listing.groups_and_strata import StrataReader
from beam_pipelines.sources.name_labels import NameLabels, without_name_labels
from beam_pipelines.sources.registry import source_classes
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.input_errors import listing_error
from tf_input.dataset_format import OBJECTS


def open_source(options: PrepareOptions, spool_directory: str | None = None) -> Source:
    """Creates the source that a configuration specifies.

    Args:
        options: The options of the source.
        spool_directory: The directory for images from compressed containers; None if these images will not be read.

    Raises:
        UserError: The input does not have the format of the source, or an option is invalid for it.
    """
    source = source_classes()[options.source.kind.name].variant(options.source)
    try:
        own_config = without_name_labels(options) if options.label_pattern is not None else options
        opened = source(own_config, spool_directory)
    except OSError as error:
        raise listing_error(error, options.input, f"--input={printable(options.input)}: {error.strerror or error}") from error
    if options.label_pattern is not None:
        opened.name_labels = labels = NameLabels(opened.features, options)
        opened.features, opened.targets = (*opened.features, *labels.features), (*opened.targets, *labels.targets)
    has_images = options.source.has_images and (not options.source.kind.may_omit_images or opened.has_images)
    names = [feature.name for feature in opened.features]
    for column in (*(options.source.labels or ()), *options.source.features):
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
    StrataReader(opened.features, options)
    masks = [feature.name for feature in opened.features if feature.is_mask and not options.source.has_masks]
    if not masks and (source_option := "mask_values" if options.source.mask_values else "mask_colors" if options.source.mask_colors is not None else ""):
        raise UserError(f"--{source_option}: the input has no masks. Omit it, or name the column of the masks with --label COLUMN:mask.")
    check_class_options(options.source, [name for name in class_labels if name.split("/")[0] in opened.targets], masks)
    return opened
