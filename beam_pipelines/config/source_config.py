"""The options of sources."""

import dataclasses
import functools
import pkgutil
import re
from typing import Any, Callable, Mapping

from beam_pipelines.config.class_files import OBJECT_LABEL, read_class_names, read_earlier_names
from beam_pipelines.columns.column import Column
from beam_pipelines.columns.forms import FORMS, check_names, parse_column, parse_labels
from beam_pipelines.config.option import Options, option
from beam_pipelines.config.source_kinds import SourceKind
from beam_pipelines.config.values import (
    NAME_PATTERN, is_delimiter, is_pixel_shape, parse_defaults, parse_image_roots, parse_integer, parse_mask_values, parse_names, parse_shape
)
from beam_pipelines.errors import reject_repeated_names
from tf_input.dataset_format import LABEL

REST = "rest"  # The name in `divide` for inputs to which the source assigns no split.
VERBATIM = "verbatim"
DEFAULT_SEPARATOR = "|"
BOX_FORMATS = ("xywh", "xyxy", "cxcywh")
BOX_UNITS = ("pixels", "relative")
ROWS = ("images", "boxes", "values")
DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "space": " "}
_option = functools.partial(option, group="source")


def _of_sources(name: str) -> Callable[..., Any]:
    """Returns a function that imports and calls a function of `sources`, because `sources` imports this module."""
    return lambda *values: pkgutil.resolve_name(f"beam_pipelines.sources.{name}")(*values)


def _describe_formats() -> str:
    formats = _of_sources("registry:source_classes")().items()
    described = " ".join(f"{name}: {source.kind.summary}." for name, source in formats)
    return f"Format of the input. {described} Default: detected from IN, and printed."


_num_bytes = functools.partial(_option, 0, metavar="N", parse=parse_integer, check=lambda number: number >= 0, expected="0 or more")


@dataclasses.dataclass(frozen=True)
class SourceConfig(Options):
    """The options of a source: its format, and the columns or fields with images, labels and other values.

    If the name of a column or field is None, it is detected when the source is opened. An empty string means that the
    source has no such column. Only attributes whose values differ from the values of their options are described.

    Attributes:
        kind: The format of the source. None detects the format.
        has_images: Whether each example has an image. Opening the source can change True to False.
        image_root: The base folder of relative paths. None selects the folder of the table or the annotations.
        image_folders: The folders below `image_root` in which images are searched, if there are several.
        labels: The columns of the labels. None selects the usual labels of the kind. An empty tuple means no labels.
        label_names: All class names of the only label, or of objects, in order. Empty selects the names in the data.
        label_names_of: A mapping from feature to all its class names, in order.
        first_label_names: A mapping from feature to its first class names, in order. New names in the data are
            appended.
        mask_colors: A mapping from the colors of masks, such as `64,128,64`, or from their values, such as `0`, to class
            names. None looks for a file with the mapping. An empty mapping means that values are class numbers.
        mask_values: A mapping from the values of masks to class numbers. Empty keeps the values.
    """

    kind: SourceKind | None = _option(
        None, "--source", choices=lambda: tuple(_of_sources("registry:source_classes")()),
        parse=_of_sources("registry:find_kind"),
        help=_describe_formats,
    )
    has_images: bool = _option(
        True, "--image", choices=("none",), parse=lambda text: text != "none", show=lambda has_images: "none",
        help="Write examples without an image. Default: detected from the input, and printed.",
    )
    labels: tuple[Column, ...] | None = _option(
        None, "--label", metavar="COLUMN[:KIND]", repeats=True, parse=parse_labels,
        help="Column or field that the model predicts. Repeat the option for each output of the model. Several columns "
        "joined by commas form one label of the kind one_hot, multi_label, float, integer or keypoints. --label=none "
        f"writes examples without a label. Kinds: {', '.join(FORMS)}. Default kind: class.",
    )
    features: tuple[Column, ...] = _option(
        (), "--feature", metavar="[FEATURE=]COLUMN[:KIND]", repeats=True,
        parse=lambda columns: tuple(parse_column("--feature", text, "text") for text in columns),
        help="Column or field to store in each example besides the labels, under its own name or as FEATURE. Repeat "
        "the option for several features. Default kind: text.",
    )
    label_names: tuple[str, ...] = _option(
        (), metavar="[LABEL=]FILE", repeats=True, parse=lambda files: read_class_names(files)[0],
        help="File with all class names in the order of their numbers, one per line. If there are several labels, "
        "repeat the option as LABEL=FILE. Default: the class names in the input.",
    )
    label_names_of: Mapping[str, tuple[str, ...]] = _option({}, "--label_names", parse=lambda files: read_class_names(files)[1])
    first_label_names: Mapping[str, tuple[str, ...]] = _option(
        {}, "--label_names_from", metavar="OLD", is_location=True, parse=read_earlier_names,
        help="Keep the class numbers of the earlier dataset OLD. New classes get higher numbers.",
    )
    label_separator: str | None = _option(
        None, metavar="TEXT", check=bool, expected="the text between class names, such as ';' or ' '",
        help="Text between the class names in one cell of the kind multi_label, such as ';' or ' '. A list in "
        f'brackets, such as ["cat", "dog"], is always read as a list. Default: {DEFAULT_SEPARATOR}',
    )
    defaults: Mapping[str, str] = _option(
        {}, "--default", metavar="COLUMN=VALUE", repeats=True, parse=parse_defaults,
        help="Value that replaces the missing cells of a column. Repeat the option for several columns. Default: none; "
        "a row whose label or number is missing becomes a dead letter.",
    )
    class_folder_depth: str | None = _option(
        None, metavar="N", check=re.compile("[1-9]|last|all").fullmatch, expected="a number from 1 to 9, last, or all",
        help="Level of nested folders that names the class: 1 for the first folder below IN or below a split folder, "
        "2, ..., last, or all for the whole path. Default: chosen from the names of the folders, and printed.",
    )
    image_root: str | None = _option(
        None, metavar="FOLDER", is_location=True, repeats=True, parse=lambda folders: parse_image_roots(folders)[0],
        show=str,
        help="Folder to which the paths of images are relative. For table and text, pass several folders, separated by "
        "commas or by repeating the option, if each image is in one of the folders. Default: the folder of the table, "
        "the text file or the annotations.",
    )
    image_folders: tuple[str, ...] = _option(
        (), "--image_root", is_location=True, parse=lambda folders: parse_image_roots(folders)[1],
        show=lambda folders: f"/{{{','.join(folders)}}}",
    )
    search_images: bool = _option(
        False,
        help="Search for images by their file names in all subfolders of --image_root, or of the folder of the table. "
        "If a name occurs twice, the image becomes a dead letter.",
    )
    image_suffix: str = _option(
        "", metavar="SUFFIX", needs_images=True,
        help="Extension to append to image names that have none, such as .jpg. Default: none.",
    )
    column_names: tuple[str, ...] = _option(
        (), metavar="NAME,...", parse=parse_names, expected="unique column names, separated by commas",
        help="Set the column names of CSV files without a header. Default: the first line contains the names.",
    )
    rows: str | None = _option(
        None, choices=ROWS,
        help="Set what a row of the table is. images: each row is an example. boxes: each row is a box, with columns "
        "such as filename,class,xmin,ymin,xmax,ymax, and --label names the column with the class. values: each row is "
        "one of several values of an image, such as a caption (--label caption:text[]). For boxes and values, rows are "
        "grouped by image. Default: boxes if columns are named like the sides of boxes and --label does not name a "
        "column; otherwise images.",
    )
    pixel_shape: tuple[int, ...] = _option(
        (), metavar="HEIGHT,WIDTH", parse=parse_shape, check=is_pixel_shape,
        expected="HEIGHT,WIDTH or HEIGHT,WIDTH,CHANNELS with 1, 3 or 4 channels, such as 48,48",
        help="Read images from the numbers in one column, or in columns such as pixel0,pixel1, and set their size. "
        "Pass HEIGHT,WIDTH,3 for RGB images. Default: a square grayscale image.",
    )
    image_column: str | None = _option(
        None, metavar="COLUMN", needs_images=True, check=bool, expected="the name of a column",
        help="Column or field with the image or its path. Default: the first column with a usual name, such as "
        "file_name, image or path.",
    )
    key_column: str | None = _option(
        None, metavar="COLUMN",
        help="Column or field with the key, which is the unique name of an example. In a table, several columns joined "
        "by commas can form the key. Pass '' to ignore a column called key. Default: the column key, if there is one; "
        "otherwise the path of the image, or the path of its container and the index of the record.",
    )
    split_column: str | None = _option(
        None, metavar="COLUMN",
        help="Column or field with the split. Pass '' to ignore a column called split. Default: the column split, if "
        "there is one.",
    )
    weight_column: str | None = _option(
        None, metavar="COLUMN",
        help="Column or field with the weight of the example. Pass '' to ignore a column called weight. Default: the "
        "column weight, if there is one.",
    )
    bad_boxes: str = _option(
        "reject", choices=("reject", "clip"), needs_images=True,
        help="Treatment of boxes that are partly or fully outside their image. reject: the image becomes a dead "
        "letter. clip: the box is clipped to the image, and removed if it is fully outside; keypoints outside get "
        "visibility 0. Columns of the kind keypoints are treated in the same way in all formats.",
    )
    drawn_on: str | None = _option(
        None, choices=("file", "upright"), needs_images=True,
        help="Orientation in which boxes, keypoints and masks were drawn on images with an EXIF rotation. file: as "
        "stored in the file. upright: as browsers and OpenCV show the image. The option takes precedence over the "
        "image size in the annotations. Default: upright if only the upright image has the size in the annotations; "
        "otherwise file, with a warning that states the number of these images.",
    )
    box_format: str | None = _option(
        None, choices=BOX_FORMATS,
        help="Meaning of the four numbers of a box. xywh: x, y, width, height. xyxy: xmin, ymin, xmax, ymax. cxcywh: x "
        "and y of the center, width, height. Default: detected from column names such as xmin; otherwise xywh, with a "
        "warning if all boxes could be xyxy.",
    )
    box_unit: str | None = _option(
        None, choices=BOX_UNITS,
        help="Unit of boxes, and of columns of the kind keypoints in any format. pixels: pixels of the image. "
        "relative: fractions of the width and height of the image, from 0 to 1. Default: pixels; the run fails if all "
        "numbers are from 0 to 1.",
    )
    has_masks: bool = _option(
        False, "--masks", needs_images=True,
        help="Convert the outlines of the objects in each image to a mask. The background has the value 0, and an "
        "object has its label plus 1.",
    )
    has_corners: bool = _option(
        False, "--corners", needs_images=True,
        help="Store the four corners of each object as keypoints, besides the upright box. Each object must be a box, "
        "which may be rotated, or a polygon with four corners.",
    )
    mask_suffix: str = _option(
        "", metavar="SUFFIX", check=lambda suffix: not set(suffix) & set("./"),
        expected="the end of the names without the extension, such as _mask",
        help="Suffix of the names of masks, before the extension, such as _segmentation for NAME_segmentation.png. "
        "Masks with a suffix can be in the folder of the images. Default: no suffix, or a usual suffix such as _mask.",
    )
    mask_colors: Mapping[str, str] | None = _option(
        None, metavar="FILE",
        parse=lambda file: {} if file == "none" else _of_sources("files.mask_classes:read_mask_classes")(file),
        help="Read the class of each color of the masks from FILE, such as a CSV file with the columns name,r,g,b, or "
        "a text file with lines such as '64 128 64 Animal'. The classes are numbered in the order of the file. none: "
        "the values of masks are class numbers. Default: class_dict.csv, _classes.csv, label_colors.txt or "
        "labelmap.txt beside the masks, if one of them exists. Its name is printed.",
    )
    mask_values: Mapping[int, int] = _option(
        {}, metavar="VALUE=CLASS,...", parse=parse_mask_values,
        check=lambda numbers: all(0 <= number < 1 << 16 for pair in numbers.items() for number in pair),
        expected="each value once as VALUE=CLASS, with numbers from 0 to 65535, such as 0=0,255=1",
        help="Convert the values of masks to class numbers, for example 0=0,255=1. List all values. Default: the "
        "values are class numbers.",
    )
    records: str | None = _option(
        None, choices=(VERBATIM,),
        help="verbatim: shuffle records of any kind, and store them unchanged, byte for byte. The key of a record "
        "consists of its file and its index in the file. Default: records are read as examples.",
    )
    layout: str | None = _option(
        None, metavar="LAYOUT",
        help="Layout of the records: the name of a known layout, or image=FEATURE[:TYPE],label=FEATURE,height=28,... "
        "Default: detected from the first records.",
    )
    record_layout: str | None = _option(
        None, metavar="FIELDS",
        help="Fields of a record as NAME:TYPE,..., such as label:uint8,image:uint8[3,32,32].",
    )
    header_bytes: int = _num_bytes(help="Number of bytes before the first record of a file. Default: 0.")
    footer_bytes: int = _num_bytes(help="Number of bytes after the last record of a file. Default: 0.")
    skip_lines: int = _num_bytes(help="Number of lines to skip at the start of each file. Default: 0.")
    delimiter: str = _option(
        "", metavar="MARK", parse=lambda text: DELIMITERS.get(text, text), check=is_delimiter,
        expected=f"one character, or one of {', '.join(DELIMITERS)}",
        help=f"Character that separates the cells of a CSV file, or one of {', '.join(DELIMITERS)}. Default: detected "
        "from the first line.",
    )
    comment: str = _option("", metavar="PREFIX", help="Skip lines that start with PREFIX. Default: no line is a comment.")
    divide: tuple[str, ...] = _option(
        (), group="splits", metavar="SPLIT,...", parse=parse_names,
        check=lambda names: all(map(NAME_PATTERN.fullmatch, names)),
        expected=f"names of splits of the source, or {REST} for the inputs without a split, each name only once",
        help="Splits of the source to divide further with --splits or --folds, such as train. The name rest stands for "
        "the inputs without a split. All other splits of the source stay unchanged.",
    )
    group: str | None = _option(
        None, group="splits", metavar="COLUMN",
        help="Column or field with the group. Examples of one group, such as the images of one patient, stay in the "
        "same split. Pass '' to ignore a column called group. Default: the column group, if there is one.",
    )

    def check_combination(self) -> None:
        if self.records:
            object.__setattr__(self, "has_images", False)
        check_names([*(self.labels or ()), *self.features])
        for given in (self.label_names, *self.label_names_of.values()):
            reject_repeated_names("--label_names", given)

    @classmethod
    def scope(cls, field: str) -> str:
        formats, all_formats = _of_sources("registry:formats_with")(field), _of_sources("registry:source_classes")()
        if not formats or len(formats) == len(all_formats):
            return ""
        return f"Only for {' and '.join(filter(None, (', '.join(formats[:-1]), formats[-1])))}."

    def names_of(self, feature: str) -> tuple[str, ...]:
        """Returns the class names of a label if an option gives all of them. Otherwise, returns an empty tuple."""
        return self.label_names_of.get(feature, self.label_names if feature in (LABEL, OBJECT_LABEL) else ())

    @property
    def is_verbatim(self) -> bool:
        """Whether records are stored unchanged, whatever they contain."""
        return self.records == VERBATIM

    @property
    def separator(self) -> str:
        """The separator between class names in a value."""
        return DEFAULT_SEPARATOR if self.label_separator is None else self.label_separator
