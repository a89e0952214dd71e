"""Defines the options of `recordmill prepare` and converts them to a configuration."""

import argparse

from beam_pipelines.config.columns import KINDS, parse_column, parse_labels
from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.config.prepare_config import (
    BAD_BOXES,
    BOX_FORMATS,
    BOX_UNITS,
    CHECKS,
    DELIMITERS,
    DEFAULT_SPLITS,
    DRAWN_ON,
    DUPLICATES,
    MAX_DUPLICATE_DISTANCE,
    ROWS,
    VERBATIM,
    PrepareConfig,
    SourceConfig,
    check_of_duplicates,
)
from beam_pipelines.config.run_options import OPTION_OF
from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.image_arguments import add_image_options, make_image_config
from beam_pipelines.options.input_arguments import add_follow_links, add_split_folders, has_split_folders
from beam_pipelines.options.leaks_arguments import add_duplicate_distance
from beam_pipelines.options.option_values import (
    default_name,
    parse_about,
    parse_defaults,
    parse_descriptions,
    parse_directory,
    parse_image_roots,
    parse_label_names,
    parse_mask_colors,
    parse_mask_values,
    parse_names,
    parse_num_shards,
    parse_patterns,
    parse_shape,
    parse_size,
    parse_splits,
    read_earlier_names,
)
from beam_pipelines.publish.resumable_run import ResumePolicy
from beam_pipelines.sources.registry import find_kind, formats_with, source_classes
from beam_pipelines.storage import STORE_TIMEOUT
from beam_pipelines.storage.object_stores.retries import check_timeout
from tf_input.dataset_format import ABOUT, LABEL

_EXAMPLE = """\
examples:
  recordmill prepare --input flowers/ --output out/flowers --splits train=0.9,validation=0.1
  recordmill prepare --input photos.csv --output out/weather --label weather --label ground --feature city
  recordmill prepare --input coco/annotations/instances_train2017.json --image_root coco/train2017 --output out/coco
  recordmill prepare --input VOC2012/ --output out/voc --image_size short=512 --image_format jpeg:90

In the first example, flowers/ has one folder per class (flowers/rose/1.jpg), or one folder per split with class folders
in it (flowers/train/rose/1.jpg). To read the dataset in Python:
  import tf_input
  train = tf_input.open("out/flowers").batches("train", batch_size=128, image_size=224)
"""

_COLUMNS = {
    "image": "Column or field with the image or its path. Default: the first column with a usual name, such as "
    "file_name, image or path.",
    "key": "Column or field with the key, which is the unique name of an example. In a table, several columns joined "
    "by commas can form the key. Pass '' to ignore a column called key. Default: the column key, if there is one; "
    "otherwise the path of the image, or the path of its container and the index of the record.",
    "split": "Column or field with the split. Pass '' to ignore a column called split. Default: the column split, if "
    "there is one.",
    "weight": "Column or field with the weight of the example. Pass '' to ignore a column called weight. Default: "
    "the column weight, if there is one.",
}


def add_prepare(commands: argparse._SubParsersAction) -> None:
    """Adds the command `prepare` and its options to the parser."""
    prepare = add_command(
        commands,
        "prepare",
        help="Convert images and labels to a globally shuffled dataset.",
        description="Lists images and labels, shuffles them globally, checks each image, and writes a dataset of "
        "TFRecord shards.\n"
        "Options that are not listed here are passed to Apache Beam, such as --runner, --direct_num_workers and\n"
        "--temp_location. --job_timeout SECONDS stops a Beam job that takes longer.",
        example=_EXAMPLE,
    )
    add = prepare.add_argument
    add(
        "--input",
        required=True,
        metavar="IN",
        help="Path or URL (gs://, s3://) of the input: a folder of class folders, a folder of split folders with class "
        "folders, or the input of another source, such as a CSV file.",
    )
    add("--output", required=True, metavar="OUT", help="Path or URL of the directory for the dataset.")
    add(
        "--name",
        help="Name of the dataset, which is also the prefix of the shard names. Default: derived from the last part of "
        "OUT.",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="Seed of the shuffle. A different seed gives a different order. Default: 0.",
    )
    _add_source_options(prepare.add_argument_group("source"))
    _add_check_options(prepare.add_argument_group("checks"))
    _add_split_options(prepare.add_argument_group("splits"))
    _name_formats(prepare)
    _add_duplicate_options(prepare.add_argument_group("near-duplicate images"))
    add_image_options(prepare.add_argument_group("stored images"))
    _add_output_options(prepare.add_argument_group("output"))
    _add_run_options(prepare.add_argument_group("run"))


def _formats() -> str:
    """Describes each source format in a sentence."""
    return " ".join(f"{name}: {source.kind.summary}." for name, source in source_classes().items())


def _name_formats(prepare: argparse.ArgumentParser) -> None:
    """Appends the supported formats to the help of each option that does not apply to all formats."""
    fields = {option: field for field, option in OPTION_OF.items()}
    for action in prepare._actions:
        formats = formats_with(fields.get(action.dest, f"source.{action.dest}").removeprefix("source."))
        if formats and len(formats) < len(source_classes()):
            names = " and ".join(filter(None, (", ".join(formats[:-1]), formats[-1])))
            meaning, default, value = action.help.partition(" Default")
            action.help = f"{meaning} Only for {names}.{default}{value}"


def _add_source_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for the source."""
    add = group.add_argument
    add(
        "--source",
        choices=tuple(source_classes()),
        help=f"Format of the input. {_formats()} Default: detected from IN, and printed.",
    )
    add(
        "--image",
        choices=("none",),
        help="Write examples without an image. Default: detected from the input, and printed.",
    )
    add(
        "--label",
        action="append",
        metavar="COLUMN[:KIND]",
        help="Column or field that the model predicts. Repeat the option for each output of the model. Several "
        "columns joined by commas form one label of the kind one_hot, multi_label, float, integer or keypoints. --label=none "
        f"writes examples without a label. Kinds: {', '.join(KINDS)}. Default kind: class.",
    )
    add(
        "--label_pattern",
        metavar="REGEX",
        help="Read the label from the key, for example from the file name, by a regular expression. The label is the text "
        "in the first parentheses. For several labels, use named groups such as (?P<age>[0-9]+), and optionally "
        "--label age:integer.",
    )
    add(
        "--feature",
        action="append",
        default=[],
        metavar="[FEATURE=]COLUMN[:KIND]",
        help="Column or field to store in each example besides the labels, under its own name or as FEATURE. Repeat "
        "the option for several features. Default kind: text.",
    )
    add(
        "--label_names",
        action="append",
        default=[],
        metavar="[LABEL=]FILE",
        help="File with all class names in the order of their numbers, one per line. If there are several labels, "
        "repeat the option as LABEL=FILE. Default: the class names in the input.",
    )
    add(
        "--label_names_from",
        metavar="OLD",
        help="Keep the class numbers of the earlier dataset OLD. New classes get higher numbers.",
    )
    add(
        "--label_separator",
        metavar="TEXT",
        help="Text between the class names in one cell of the kind multi_label, such as ';' or ' '. A list in "
        f'brackets, such as ["cat", "dog"], is always read as a list. Default: {DEFAULT_SEPARATOR}',
    )
    add(
        "--default",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="Value that replaces the missing cells of a column. Repeat the option for several columns. Default: "
        "none; a row whose label or number is missing becomes a dead letter.",
    )
    add(
        "--class_folder_depth",
        metavar="N",
        help="Level of nested folders that names the class: 1 for the first folder below IN or below a split folder, "
        "2, ..., last, or all for the whole path. Default: chosen from the names of the folders, and printed.",
    )
    add(
        "--image_root",
        action="append",
        default=[],
        metavar="FOLDER",
        help="Folder to which the paths of images are relative. For table and text, pass several folders, separated by "
        "commas or by repeating the option, if each image is in one of the folders. Default: the folder of the table, "
        "the text file or the annotations.",
    )
    add(
        "--search_images",
        action="store_true",
        help="Search for images by their file names in all subfolders of --image_root, or of the folder of the table. If "
        "a name occurs twice, the image becomes a dead letter.",
    )
    add(
        "--image_suffix",
        default="",
        metavar="SUFFIX",
        help="Extension to append to image names that have none, such as .jpg. Default: none.",
    )
    add(
        "--column_names",
        metavar="NAME,...",
        help="Set the column names of CSV files without a header. Default: the first line contains the names.",
    )
    add(
        "--rows",
        choices=ROWS,
        help="Set what a row of the table is. images: each row is an example. boxes: each row is a box, with columns such "
        "as filename,class,xmin,ymin,xmax,ymax, and --label names the column with the class. values: each row is one "
        "of several values of an image, such as a caption (--label caption:text[]). For boxes and values, rows are "
        "grouped by image. Default: boxes if columns are named like the sides of boxes and --label does not name a "
        "column; otherwise images.",
    )
    add(
        "--pixel_shape",
        metavar="HEIGHT,WIDTH",
        help="Read images from the numbers in one column, or in columns such as pixel0,pixel1, and set their size. Pass "
        "HEIGHT,WIDTH,3 for RGB images. Default: a square grayscale image.",
    )
    for column, meaning in _COLUMNS.items():
        add(f"--{column}_column", metavar="COLUMN", help=meaning)
    add(
        "--bad_boxes",
        choices=BAD_BOXES,
        default="reject",
        help="Treatment of boxes that are partly or fully outside their image. reject: the image becomes a dead "
        "letter. clip: the box is clipped to the image, and removed if it is fully outside; keypoints outside get "
        "visibility 0. Columns of the kind keypoints are treated in the same way in all formats. Default: reject.",
    )
    add(
        "--drawn_on",
        choices=DRAWN_ON,
        help="Orientation in which boxes, keypoints and masks were drawn on images with an EXIF rotation. file: as stored in "
        "the file. upright: as browsers and OpenCV show the image. The option takes precedence over the image size "
        "in the annotations. Default: upright if only the upright image has the size in the annotations; otherwise "
        "file, with a warning that states the number of these images.",
    )
    add(
        "--box_format",
        choices=BOX_FORMATS,
        help="Meaning of the four numbers of a box. xywh: x, y, width, height. xyxy: xmin, ymin, xmax, ymax. cxcywh: "
        "x and y of the center, width, height. Default: detected from column names such "
        "as xmin; otherwise xywh, with a warning if all boxes could be xyxy.",
    )
    add(
        "--box_unit",
        choices=BOX_UNITS,
        help="Unit of boxes, and of columns of the kind keypoints in any format. pixels: pixels of the image. relative: "
        "fractions of the width and height of the image, from 0 to 1. Default: pixels; the run fails if all numbers are "
        "from 0 to 1.",
    )
    add(
        "--masks",
        action="store_true",
        help="Convert the outlines of the objects in each image to a mask. The background has the value 0, and an object "
        "has its label plus 1.",
    )
    add(
        "--mask_suffix",
        default="",
        metavar="SUFFIX",
        help="Suffix of the names of masks, before the extension, such as _segmentation for NAME_segmentation.png. Masks "
        "with a suffix can be in the folder of the images. Default: no suffix, or a usual suffix such as _mask.",
    )
    add(
        "--mask_colors",
        metavar="FILE",
        help="Read the class of each color of the masks from FILE, such as a CSV file with the columns name,r,g,b, or a "
        "text file with lines such as '64 128 64 Animal'. The classes are numbered in the order of the file. none: the "
        "values of masks are class numbers. Default: class_dict.csv, _classes.csv, label_colors.txt or labelmap.txt "
        "beside the masks, if one of them exists. Its name is printed.",
    )
    add(
        "--mask_values",
        metavar="VALUE=CLASS,...",
        help="Convert the values of masks to class numbers, for example 0=0,255=1. List all values. Default: the values are "
        "class numbers.",
    )
    add(
        "--records",
        choices=(VERBATIM,),
        help="verbatim: shuffle records of any kind, and store them unchanged, byte for byte. The key of a record consists "
        "of its file and its index in the file. Default: records are read as examples.",
    )
    add(
        "--layout",
        metavar="LAYOUT",
        help="Layout of the records: the name of a known layout, or image=FEATURE[:TYPE],label=FEATURE,height=28,... "
        "Default: detected from the first records.",
    )
    add(
        "--record_layout",
        metavar="FIELDS",
        help="Fields of a record as NAME:TYPE,..., such as label:uint8,image:uint8[3,32,32].",
    )
    add(
        "--header_bytes",
        type=int,
        default=0,
        metavar="N",
        help="Number of bytes before the first record of a file. Default: 0.",
    )
    add(
        "--footer_bytes",
        type=int,
        default=0,
        metavar="N",
        help="Number of bytes after the last record of a file. Default: 0.",
    )
    add(
        "--skip_lines",
        type=int,
        default=0,
        metavar="N",
        help="Number of lines to skip at the start of each file. Default: 0.",
    )
    add(
        "--delimiter",
        default="",
        metavar="MARK",
        help=f"Character that separates the cells of a CSV file, or one of {', '.join(DELIMITERS)}. Default: detected from "
        "the first line.",
    )
    add(
        "--comment",
        default="",
        metavar="PREFIX",
        help="Skip lines that start with PREFIX. Default: no line is a comment.",
    )


def _add_check_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that determine which inputs are read, and how they are checked."""
    add = group.add_argument
    add(
        "--check",
        choices=CHECKS,
        default="strict",
        help="How images are checked. strict: decode each image, and reject it if the decoder reports an error or a "
        "warning. decode: decode each image, and reject it only if the decoder reports an error. header: read only the "
        "format and the size. none: store images without a check. Default: strict.",
    )
    add(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        metavar="F",
        help="Largest fraction of inputs that can be rejected, from 0 to 1. The run fails if more inputs are "
        "rejected. Default: 0.01.",
    )
    add_follow_links(group, "IN", "become dead letters")
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="GLOB",
        help="Ignore files whose name or path matches GLOB, such as '*.txt'. Repeat the option for several patterns.",
    )


def _add_split_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for splits."""
    add = group.add_argument
    splits = ",".join(f"{split}={float(fraction):g}" for split, fraction in DEFAULT_SPLITS.items())
    add(
        "--splits",
        metavar="NAME=SHARE,...",
        help="Names of the splits and their shares, which add up to 1. Default: the splits of the source; if it has "
        f"none, {splits}.",
    )
    add(
        "--folds",
        type=int,
        metavar="N",
        help="Number of splits of equal size, called fold0, fold1, ..., for cross-validation. Replaces --splits.",
    )
    add(
        "--divide",
        metavar="SPLIT,...",
        help="Splits of the source to divide further with --splits or --folds, such as train. The name rest stands for "
        "the inputs without a split. All other splits of the source stay unchanged.",
    )
    add(
        "--stratify",
        nargs="?",
        const=LABEL,
        metavar="FEATURE,...",
        help="Give each split the same proportion of each class, to within one example. If names of labels "
        "or features are given, use their values instead of the class.",
    )
    add(
        "--group",
        metavar="COLUMN",
        help="Column or field with the group. Examples of one group, such as the images of one patient, stay in the "
        "same split. Pass '' to ignore a column called group. Default: the column group, if there is one.",
    )
    add(
        "--group_pattern",
        metavar="REGEX",
        help="Regular expression that finds the group in the key. The group is the text in the first parentheses, or "
        "the whole match.",
    )
    add(
        "--splits_from",
        metavar="OLD",
        help="Earlier dataset, or CSV or Parquet file with the columns key and split. Inputs that it contains keep "
        "their splits. --splits applies to all other inputs. Useful with --stratify, and with --duplicates group or "
        "drop.",
    )
    add_split_folders(
        group,
        "Whether the top folders of IN are splits. Default: yes if all have names of splits, such as train and "
        "test.",
    )


def _add_duplicate_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for near-duplicates."""
    add = group.add_argument
    add(
        "--duplicates",
        choices=DUPLICATES,
        help="Find identical and near-duplicate images, including recompressed, resized, recolored and flipped "
        "copies. keep: keep and count all copies. group: put all copies in the same split. drop: keep only the copy "
        "with the smallest key. Each image is read twice and decoded once. If the dataset grows, new near-duplicates "
        "can change the result of group and drop, unless --splits_from names the earlier dataset. Default: "
        "near-duplicates are not searched for.",
    )
    add_duplicate_distance(group)
    add("--exact_only", action="store_true", help="Find only copies with identical bytes. Needs --duplicates.")


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for the output."""
    add = group.add_argument
    add(
        "--num_shards",
        metavar="N",
        help="Total number of shards, such as 16, or number per split, such as train=16,validation=2. Default: chosen "
        "from the size of the dataset.",
    )
    add(
        "--shard_size",
        metavar="SIZE",
        help="Approximate size of a shard, such as 128MiB, instead of --num_shards. Default: chosen from the size of "
        "the dataset.",
    )
    add(
        "--describe",
        action="append",
        default=[],
        metavar="FEATURE=TEXT",
        help="Description of a feature, which is stored in the dataset's metadata. Repeat the option for several "
        "features.",
    )
    add(
        "--no_report",
        action="store_true",
        help="Do not write report.html, the page that shows the contents of the dataset.",
    )
    add(
        "--about",
        action="append",
        default=[],
        metavar="WHAT=TEXT",
        help=f"Text for the card of the dataset (README.md). WHAT is one of {', '.join(ABOUT)}. Repeat the option for "
        "several texts.",
    )


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that determine how the command runs, and how it resumes."""
    add = group.add_argument
    add(
        "--store_timeout",
        type=float,
        default=STORE_TIMEOUT,
        metavar="SECONDS",
        help="Fail if an object store sends no successful response for SECONDS. Rerun with --resume to continue. "
        f"Default: {STORE_TIMEOUT}.",
    )
    add(
        "--shared_filesystem",
        action="store_true",
        help="Declare that all workers of a cluster can access the local paths, such as paths on NFS, Lustre or "
        "Filestore.",
    )
    add(
        "--estimate",
        action="store_true",
        help="List the input, print the expected output size, memory and time, and write nothing.",
    )
    add("--wait", action="store_true", help="Wait until the Dataflow job finishes. Other runners always wait.")
    add("--overwrite", action="store_true", help="Replace an existing dataset at OUT when the new dataset is complete.")
    left = group.add_mutually_exclusive_group()
    left.add_argument(
        "--resume",
        action="store_true",
        help="Resume an interrupted or failed run to OUT, and keep its completed shards. Pass the same options as "
        "before. If there is no unfinished run, start a new run. If the dataset is complete, do nothing.",
    )
    left.add_argument(
        "--restart",
        action="store_true",
        help="Delete the files of an interrupted or failed run to OUT, and start over.",
    )


def make_config(arguments: argparse.Namespace) -> PrepareConfig:
    """Converts the arguments of `recordmill prepare` to its configuration.

    No files are read, except those of `--label_names`, `--label_names_from` and `--mask_colors`.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    check_timeout(arguments.store_timeout)
    output = parse_directory("--output", arguments.output)
    return PrepareConfig(
        input=arguments.input,
        output=output,
        name=default_name(output) if arguments.name is None else arguments.name,
        seed=arguments.seed,
        splits=None if arguments.splits is None else parse_splits(arguments.splits),
        split_folders=has_split_folders(arguments),
        folds=arguments.folds,
        stratify=() if arguments.stratify is None else parse_names("--stratify", arguments.stratify),
        group_pattern=arguments.group_pattern,
        label_pattern=arguments.label_pattern,
        splits_from=None if arguments.splits_from is None else parse_directory("--splits_from", arguments.splits_from),
        num_shards=None if arguments.num_shards is None else parse_num_shards(arguments.num_shards),
        shard_bytes=None if arguments.shard_size is None else parse_size(arguments.shard_size),
        check=arguments.check,
        max_bad_fraction=arguments.max_bad_fraction,
        descriptions=parse_descriptions(arguments.describe),
        has_report=not arguments.no_report,
        duplicates=arguments.duplicates,
        duplicate_distance=_duplicate_distance(arguments),
        exact_only=arguments.exact_only,
        about=parse_about(arguments.about),
        follow_links=arguments.follow_links,
        ignore=parse_patterns(arguments.ignore),
        source=make_source_config(arguments),
        images=make_image_config(arguments),
    )


def _duplicate_distance(arguments: argparse.Namespace) -> int:
    """Returns the value of `--duplicate_distance` or its default.

    Raises:
        UserError: The option is given, but other options make it useless.
    """
    distance = arguments.duplicate_distance
    check_of_duplicates(arguments.duplicates, {"duplicate_distance": distance})
    if arguments.exact_only and distance is not None:
        raise UserError("--exact_only and --duplicate_distance cannot be used together. Give only one of them.")
    return MAX_DUPLICATE_DISTANCE if distance is None else distance


def make_resume_policy(arguments: argparse.Namespace) -> ResumePolicy:
    """Returns the policy that `--resume` and `--restart` select for an interrupted run."""
    if arguments.resume:
        return ResumePolicy.RESUME
    return ResumePolicy.RESTART if arguments.restart else ResumePolicy.FAIL


def make_source_config(arguments: argparse.Namespace) -> SourceConfig:
    """Converts the arguments of `recordmill prepare` to the configuration of its source.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    image_root, image_folders = parse_image_roots(arguments.image_root)
    label_names, label_names_of = parse_label_names(arguments.label_names)
    source = arguments.source or (formats_with("records")[0] if arguments.records else None)
    return SourceConfig(
        kind=None if source is None else find_kind(source),
        has_images=arguments.image != "none" and arguments.records is None,
        rows=arguments.rows,
        column_names=tuple(name.strip() for name in arguments.column_names.split(",")) if arguments.column_names is not None else (),
        image_root=image_root,
        image_folders=image_folders,
        search_images=arguments.search_images,
        image_suffix=arguments.image_suffix,
        **{f"{column}_column": getattr(arguments, f"{column}_column") for column in _COLUMNS},
        pixel_shape=() if arguments.pixel_shape is None else parse_shape("--pixel_shape", arguments.pixel_shape),
        group=arguments.group,
        divide=() if arguments.divide is None else parse_names("--divide", arguments.divide),
        labels=None if arguments.label is None else parse_labels(arguments.label),
        features=tuple(parse_column("--feature", text, "text") for text in arguments.feature),
        label_names=label_names,
        label_names_of=label_names_of,
        first_label_names={} if arguments.label_names_from is None else read_earlier_names(arguments.label_names_from),
        label_separator=arguments.label_separator,
        defaults=parse_defaults(arguments.default),
        bad_boxes=arguments.bad_boxes,
        drawn_on=arguments.drawn_on,
        box_format=arguments.box_format,
        box_unit=arguments.box_unit,
        has_masks=arguments.masks,
        mask_suffix=arguments.mask_suffix,
        mask_colors=None if arguments.mask_colors is None else parse_mask_colors(arguments.mask_colors),
        mask_values={} if arguments.mask_values is None else parse_mask_values(arguments.mask_values),
        records=arguments.records,
        layout=arguments.layout,
        record_layout=arguments.record_layout,
        header_bytes=arguments.header_bytes,
        footer_bytes=arguments.footer_bytes,
        skip_lines=arguments.skip_lines,
        comment=arguments.comment,
        delimiter=DELIMITERS.get(arguments.delimiter, arguments.delimiter),
        class_folder_depth=arguments.class_folder_depth,
    )
