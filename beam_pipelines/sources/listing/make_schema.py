"""Derives the schema of a dataset from the features of the source and the facts about the inputs."""

import dataclasses
from typing import Iterable, Iterator, Sequence

import numpy as np

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.source_config import SourceConfig
from beam_pipelines.elements.class_tables import OBJECT_LABEL, make_class_table
from beam_pipelines.errors import InvalidInput, UserError, did_you_mean, printable
from beam_pipelines.images.image_headers import identify
from beam_pipelines.images.npy_header import MAX_HEADER_BYTES
from beam_pipelines.images.raw_image import RawImage
from beam_pipelines.images.arrays import npy_layout
from beam_pipelines.images.tiff_header import read_tiff_header
from beam_pipelines.images.tiff_pixels import tensor_layout
from beam_pipelines.sources.listing.listed_facts import ListedFacts
from beam_pipelines.sources.source import Source
from beam_pipelines.storage.files import files_at, read_in_any_form, read_start
from beam_pipelines.storage.input_errors import describe_fact
from tf_input.dataset_format import IMAGE, Feature

_NPY_ENDS = (".npy", ".NPY")
_START_BYTES = 1 << 14  # the size of the first read of a TIFF, whose tags are often at the start


def make_schema(options: PrepareOptions, source: Source, facts: ListedFacts) -> tuple[Feature, ...]:
    features = [] if options.source.is_verbatim else [Feature("key", "text")]
    if options.source.has_images:
        features.append(_image_feature(options, source.root, facts))
        if options.check != "none":  # otherwise image sizes are unknown
            features += [Feature("height", "integer"), Feature("width", "integer")]
        _check_follows(options, source, facts)
    for feature in (*source.features, *_found_features(facts)):
        if feature.is_categorical:
            names, known = facts.schema.labels[feature.name], facts.schema.known_names(feature.name)
            if feature.name == OBJECT_LABEL and (empty := facts.schema.empty_groups()):
                known = type(known)(name for name in known if name not in empty)
            is_scalar_each = feature.name not in facts.schema.several_labels if feature.shape else None
            table = make_class_table(options.source, feature.name, names, known, is_scalar_each=is_scalar_each)
            feature = dataclasses.replace(feature, label_names=table)
        if feature.is_mask:
            objects = next((item.label_names for item in features if item.name == OBJECT_LABEL), ())
            names = with_background(objects) if options.source.has_masks else mask_names(options.source, feature.name, source.features)
            feature = dataclasses.replace(feature, label_names=names)
        if feature.name in facts.schema.long_texts:
            feature = dataclasses.replace(feature, is_long=True)
        if feature.is_image:
            feature = _other_image(options, feature.name)
            features += [Feature(f"{feature.name}/{side}", "integer") for side in ("height", "width") if options.check != "none"]
        features.append(feature)
    names = sorted(feature.name for feature in features)
    for name in options.descriptions:
        if name not in names:
            raise UserError(
                f"--describe={name}=…: there is no such feature{did_you_mean(name, names) or '.'} Choose one of {', '.join(names)}."
            )
    described = (
        dataclasses.replace(item, description=options.descriptions.get(item.name, item.description)) for item in features
    )
    return tuple(sorted(described, key=lambda feature: feature.name))


def mask_names(source: SourceConfig, name: str, features: Iterable[Feature]) -> tuple[str, ...]:
    """Returns the class names of the mask `name`, or () if they are unknown. Raises `UserError` if `--label_names` lacks a
    class of `--mask_colors`."""
    is_only_one = not any(feature.is_categorical for feature in features)
    given = source.label_names_of.get(name, source.label_names if is_only_one else ())
    own = (source.mask_colors or {}).values()
    if given and (others := [item for item in own if item not in given]):
        raise UserError(f"--label_names: lacks {printable(others[0])!r}, which --mask_colors names. Add the name, or omit --label_names.")
    return given or tuple(dict.fromkeys((*source.first_label_names.get(name, ()), *own)))


def with_background(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the class names of a mask that is drawn from objects, given their class names. 0 is the background."""
    return (next(name for name in ("background", "no object", "(no object)") if name not in names), *names) if names else ()


def _found_features(facts: ListedFacts) -> Iterator[Feature]:
    """Yields the features that are known only after listing, such as keypoints. Raises `UserError` if parts of the
    source have different features of the same name."""
    for name, found in sorted(facts.schema.found_features.items()):
        if len(found) > 1:
            forms = sorted(f"{list(feature.shape[1:])} {', '.join(map(printable, feature.point_names))}".strip() for feature in found)
            raise UserError(f"{name}: the inputs have different points: {' and '.join(forms[:2])}. Prepare them as separate datasets.")
        yield from found


def _check_follows(options: PrepareOptions, source: Source, facts: ListedFacts) -> None:
    """Raises `UserError` if `--check=none` is combined with options that require image headers."""
    if options.check != "none":
        return
    following = [f.name for f in source.features if f.is_spatial or (f.may_be_dense and len(f.shape) > 1)]
    if following:
        raise UserError(
            f"--check=none: the size of {following[0]!r} must match the image, but --check=none does not read images. Use --check=header."
        )
    if not options.images.is_kept or facts.schema.raws != {None} or facts.schema.arrays:
        raise UserError(
            "--check=none: images that are arrays or TIFFs, or are resized or converted, must be read. Use --check=header or a "
            "stricter check."
        )


def _image_feature(options: PrepareOptions, root: str, facts: ListedFacts) -> Feature:
    raws = {*facts.schema.raws, *([_first_layout(root, sorted(facts.schema.arrays))] if facts.schema.arrays else [])} - {None}
    if any(raw.is_tensor for raw in raws):
        return _image_tensor(options, raws, is_of_files=bool(facts.schema.arrays))
    if options.images.encoding == "file":
        return Feature(IMAGE, "image", dtype="uint16" if options.images.keep_depth else "")
    sizes = {raw and (raw.height, raw.width) for raw in facts.schema.raws}
    exact = options.images.size if options.images.size and options.images.size[0] == "exact" else None
    if exact is None and (len(sizes) > 1 or sizes == {None} or options.images.size):
        raise UserError(
            "--image_encoding=raw: all images must have the same size. Pass one, for example --image_size=exact=32x32."
        )
    height, width = exact[1:] if exact else next(iter(sizes))
    channels = {raw.num_channels if raw else 3 for raw in facts.schema.raws}
    if len(channels) > 1:
        raise UserError(
            "--image_encoding=raw: some arrays are gray and others have colors. Convert them to the same number of channels."
        )
    return Feature(IMAGE, "pixels", (height, width, channels.pop()))


def _other_image(options: PrepareOptions, name: str) -> Feature:
    if options.images.encoding == "file":
        return Feature(name, "image", dtype="uint16" if options.images.keep_depth else "")
    if options.images.size is None or options.images.size[0] != "exact":
        raise UserError(
            f"--image_encoding=raw: all images of {name!r} must have the same size. Pass --image_size=exact=HEIGHTxWIDTH."
        )
    return Feature(name, "pixels", (*options.images.size[1:], 3))


def _image_tensor(options: PrepareOptions, raws: set[RawImage], is_of_files: bool) -> Feature:
    """Returns the feature `image` for images that are stored as tensors. Raises `UserError` unless all images have the
    same dtype and number of channels."""
    kinds = sorted({(np.dtype(raw.dtype).name, raw.num_channels) for raw in raws})
    (dtype, num_channels), *others = kinds
    if others:
        types = ", ".join(f"{name} in {number} channels" for name, number in kinds[:3])
        raise UserError(f"The images are arrays of {types}. Convert them to one type and one number of channels.")
    if not options.images.is_kept or options.images.keep_depth:
        raise UserError(
            "--image_size, --image_format, --image_encoding and --keep_depth are only for image files, but these "
            f"images are arrays of {dtype} in {num_channels} channels, which are stored unchanged. Omit these "
            "options; batches(image_size=...) resizes the arrays when they are read."
        )
    sizes = {(raw.height, raw.width) for raw in raws}
    size = sizes.pop() if len(sizes) == 1 and not is_of_files else (None, None)
    return Feature(IMAGE, "tensor", (*size, num_channels), dtype=dtype)


def _first_layout(root: str, paths: list[str]) -> RawImage | None:
    """Returns the layout of the first readable `.npy` or TIFF file, or None if the file is stored as an ordinary image.
    Raises `UserError` if all files are `.npy` files, and none of them is readable."""
    problems = []
    for name in paths:
        path = f"{root}/{name}"
        try:
            if name.endswith(_NPY_ENDS):
                return npy_layout(read_start(root, name, MAX_HEADER_BYTES))
            return _tiff_layout(root, name)
        except OSError as error:
            problems.append(f"{printable(path)}: {describe_fact(error, path)}")
        except InvalidInput as error:
            problems.append(f"{printable(path)}: {error}")
    if not all(name.endswith(_NPY_ENDS) for name in paths):
        return None  # unreadable TIFFs become dead letters
    raise UserError(
        f"None of the first .npy files is a readable image: {problems[0]}. Correct them, or exclude them with --ignore."
    )


def _tiff_layout(root: str, name: str) -> RawImage | None:
    """Returns the layout of a TIFF that is stored as a tensor, or None for all other files."""
    start = read_start(root, name, _START_BYTES)
    if identify(start) != "tiff":
        return None

    def read(offset: int, num_bytes: int) -> bytes:
        if offset + num_bytes <= len(start):
            return start[offset : offset + num_bytes]
        return read_in_any_form(lambda path: files_at(path).read_range(path, offset, num_bytes), root, name)

    header = read_tiff_header(read)
    return tensor_layout(header) if header.is_tensor else None
