"""The options of `recordmill prepare` and their conversion to a configuration."""

import argparse

from beam_pipelines.config.columns import KINDS, parse_column, parse_labels
from beam_pipelines.config.label_lists import DEFAULT_SEPARATOR
from beam_pipelines.config.prepare_config import (
    BAD_BOXES,
    BOX_FORMATS,
    BOX_UNITS,
    CHECKS,
    DEFAULT_SPLITS,
    DRAWN_ON,
    DUPLICATES,
    MAX_DUPLICATE_DISTANCE,
    PrepareConfig,
    SourceConfig,
    check_of_duplicates,
)
from beam_pipelines.config.source_kinds import SOURCES
from beam_pipelines.errors import UserError
from beam_pipelines.options.command_parser import add_command
from beam_pipelines.options.image_arguments import add_image_options, make_image_config
from beam_pipelines.options.leaks_arguments import add_duplicate_distance
from beam_pipelines.options.option_values import (
    default_name,
    parse_about,
    parse_defaults,
    parse_descriptions,
    parse_directory,
    parse_label_names,
    parse_names,
    parse_num_shards,
    parse_patterns,
    parse_size,
    parse_splits,
    read_earlier_names,
)
from beam_pipelines.publish.left_run import OnLeft
from beam_pipelines.storage import STORE_TIMEOUT
from beam_pipelines.storage.object_stores.retries import check_timeout
from tf_input.dataset_format import ABOUT, LABEL, LAYOUTS

_EXAMPLE = """\
example:
  recordmill prepare --input flowers/ --output out/flowers --splits train=0.9,validation=0.1

  flowers/ holds a folder for each class (flowers/rose/1.jpg), or split folders of such (flowers/train/rose/1.jpg).
  Read it with:  import tf_input; tf_input.open("out/flowers").batches("train", batch_size=128, image_size=224)

other sources:
  recordmill prepare --input photos.csv --output out/weather --label weather --label ground --feature city
  recordmill prepare --input coco/annotations/instances_train2017.json --image_root coco/train2017 --output out/coco
  recordmill prepare --input VOC2012/ --output out/voc --image_size short=512 --image_format jpeg:90
"""

_COLUMNS = {
    "image": "images' paths, or of images (default: by the usual names, file_name, image, path, ...)",
    "key": "unique names of examples; of a table also several columns, with commas between them, that are unique together (default: key; "
    "'' for none: then an image's path, or its container's and its name there)",
    "split": "splits (default: split; '' for none)",
    "weight": "weights of examples (default: weight; '' for none)",
}


def add_prepare(commands: argparse._SubParsersAction) -> None:
    """Adds the command `prepare` and its options to the parser."""
    prepare = add_command(
        commands,
        "prepare",
        help="images and labels -> a globally shuffled data set",
        description="Reads images and labels from where they lie, checks them, shuffles them globally and writes sharded TFRecords.\n"
        "Every other option goes to Apache Beam (--runner, --direct_num_workers, --temp_location, ...).\n"
        "--job_timeout SECONDS stops a job that takes longer.",
        example=_EXAMPLE,
    )
    add = prepare.add_argument
    add(
        "--input",
        required=True,
        metavar="IN",
        help="class folders, or split folders of class folders, or what another source expects: a path, or a gs:// or s3:// URL",
    )
    add("--output", required=True, metavar="OUT", help="the directory that becomes the data set: a path or URL too")
    add("--name", help="of the data set; its shards begin with it (default: from OUT)")
    add("--seed", type=int, default=0, help="of the shuffle: another seed, another permutation (default: 0)")
    _add_source_options(prepare.add_argument_group("where images and labels come from"))
    _add_check_options(prepare.add_argument_group("which inputs are taken"))
    _add_split_options(prepare.add_argument_group("splits"))
    _add_duplicate_options(prepare.add_argument_group("images that are alike"))
    add_image_options(prepare.add_argument_group("how images are stored"))
    _add_output_options(prepare.add_argument_group("what is written"))
    _add_run_options(prepare.add_argument_group("the run"))


def _add_source_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for the source."""
    add = group.add_argument
    add(
        "--source",
        choices=tuple(SOURCES),
        help="what IN is (default: guessed from the names there, and said); tfrecord: ArrayRecord files too",
    )
    add(
        "--image",
        choices=("none",),
        help="none: examples have no image, but values alone (default: found out, and said, of tables, arrays and records)",
    )
    add(
        "--label",
        action="append",
        metavar="COLUMN[:KIND]",
        help="what a model is to predict, once for each output; none: nothing. Several columns with commas between them make "
        f"one multi_label or float. Kinds: {', '.join(KINDS)} (default: class)",
    )
    add(
        "--feature",
        action="append",
        default=[],
        metavar="[FEATURE=]COLUMN[:KIND]",
        help="what else an example holds, in the same way: by the column's name or by another (default kind: text)",
    )
    add(
        "--label_names",
        action="append",
        default=[],
        metavar="[HEAD=]FILE",
        help="all class names, one a line, in their order; of several heads, once for each (default: those that are found)",
    )
    add(
        "--label_names_from",
        metavar="OLD",
        help="a data set prepared earlier, whose classes keep their numbers; new classes come after them",
    )
    add(
        "--label_separator",
        metavar="TEXT",
        help=f"what stands between the class names in one cell of a multi_label, such as ';' or ' ' (default: {DEFAULT_SEPARATOR}); a list "
        'in brackets, such as ["cat", "dog"], is read as a list in any case',
    )
    add(
        "--default",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="table, tfrecord, webdataset: the value that stands in place of a missing cell, once for each column (default: a row with a "
        "missing label or number is a dead letter)",
    )
    add(
        "--class_folder_depth",
        metavar="N",
        help="Which of nested class folders is the class: 1 for the first below IN or below a split folder, 2, ..., last, or all for the "
        "whole path (default: chosen by the names of the folders, and printed)",
    )
    add("--image_root", metavar="FOLDER", help="what paths are relative to (default: the folder of the table or the annotations)")
    add("--image_suffix", default="", metavar="SUFFIX", help="text, table: what names without an extension lack, such as .jpg")
    add("--column_names", metavar="NAME,...", help="table: the columns of CSV files without a header")
    for column, usual in _COLUMNS.items():
        add(f"--{column}_column", metavar="COLUMN", help=f"the column of {usual}")
    add(
        "--bad_boxes",
        choices=BAD_BOXES,
        default="refuse",
        help="an image with a box that is not inside it is refused (a dead letter), or the box is clipped, and left out where "
        "nothing of it remains (default: refuse)",
    )
    add(
        "--drawn_on",
        choices=DRAWN_ON,
        help="The image that boxes and masks were drawn on, if EXIF rotates it: as the file stores it, or upright, as browsers and OpenCV "
        "show it. Wins over the size that annotations state (default: upright if only the upright image has the stated size; otherwise "
        "file, and a warning counts the images)",
    )
    add(
        "--box_format",
        choices=BOX_FORMATS,
        help="table, webdataset: the numbers of a box, [x, y, width, height], [xmin, ymin, xmax, ymax] or [x and y of the center, width, "
        "height] (default: xywh, with a warning if all boxes may be corners)",
    )
    add(
        "--box_unit",
        choices=BOX_UNITS,
        help="table, webdataset: the unit of these numbers, pixels or shares of the image's sides in 0..1 (default: pixels; boxes that are "
        "all in 0..1 are then an error)",
    )
    add(
        "--masks",
        action="store_true",
        help="coco: Draw a mask from the outlines of the objects. 0 is the background; other values are labels plus 1.",
    )
    add(
        "--layout",
        metavar="LAYOUT",
        help="tfrecord: a layout by name, or image=FEATURE[:TYPE],label=FEATURE,height=28,... (default: found by looking)",
    )
    add("--record_layout", metavar="FIELDS", help="fixed_length: NAME:TYPE,..., such as label:uint8,image:uint8[3,32,32]")
    add("--header_bytes", type=int, default=0, metavar="N", help="fixed_length: what stands before the first record")
    add("--footer_bytes", type=int, default=0, metavar="N", help="fixed_length: what stands behind the last record")
    add("--skip_lines", type=int, default=0, metavar="N", help="text, text_lines, table: lines at the top that are skipped")
    add("--comment", default="", metavar="PREFIX", help="text, text_lines, table: how a line begins that is a comment")


def _add_check_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options that select and check inputs."""
    add = group.add_argument
    add(
        "--check",
        choices=CHECKS,
        default="strict",
        help="strict: decoded, and nothing to warn of; decode: decoded; header: size and format known; "
        "none: taken as it is (default: strict)",
    )
    add(
        "--max_bad_fraction",
        type=float,
        default=0.01,
        metavar="F",
        help="fail if more of the inputs are refused (default: 0.01)",
    )
    add(
        "--follow_links",
        action="store_true",
        help="Follow links on a disk that lead out of IN or to folders, except into a folder that contains the link. Without the option "
        "such links are dead letters.",
    )
    add("--ignore", action="append", default=[], metavar="GLOB", help="files that are no inputs, such as '*.txt'")


def _add_split_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for splits."""
    add = group.add_argument
    splits = ",".join(f"{split}={float(fraction):g}" for split, fraction in DEFAULT_SPLITS.items())
    add("--splits", metavar="NAME=SHARE,...", help=f"shares that add up to 1 (default: {splits}, or the split folders)")
    add("--folds", type=int, metavar="N", help="splits fold0, fold1, ... of equal shares, in place of --splits")
    add(
        "--divide",
        metavar="SPLIT,...",
        help="what --splits or --folds divides where the source names splits: such as train, or rest: the inputs without a split (the "
        "other splits stay as they are)",
    )
    add(
        "--stratify",
        nargs="?",
        const=LABEL,
        metavar="FEATURE,...",
        help="each class gets into each split by its share, give or take one example; of other labels or features in place of the class: "
        "their names",
    )
    add("--group", metavar="COLUMN", help="the column of what stays in one split together, such as a patient (default: group; '' for none)")
    add("--group_pattern", metavar="REGEX", help="what it is in the key: the first part in parentheses, or all that matches")
    add(
        "--splits_from",
        metavar="OLD",
        help="keep the splits of inputs that are there by their keys: a data set prepared earlier, or a CSV or Parquet file with the "
        "columns key and split; others are placed as --splits says (of use with --stratify, and with --duplicates group or drop)",
    )
    add("--split_folders", choices=("yes", "no"), help="whether IN's folders are splits (default: by their names)")


def _add_duplicate_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for near-duplicates."""
    add = group.add_argument
    add(
        "--duplicates",
        choices=DUPLICATES,
        help="find images that are alike, also recompressed, resized, recoloured or mirrored ones. group: bring them into one split; "
        "drop: keep the one with the smallest key; keep: say how many there are (each image is read twice, and decoded once). "
        "Where data grow, new twins may change what group and drop do, unless --splits_from says what was",
    )
    add_duplicate_distance(group)
    add("--exact_only", action="store_true", help="only images of the same bytes are alike")
    add(
        "--move_to",
        metavar="SPLIT",
        help="where --duplicates group brings those that the source or --splits_from has in several splits (default: that is refused)",
    )


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for the output."""
    add = group.add_argument
    add("--num_shards", metavar="N", help="in all, or of each split: train=16,validation=2 (default: by size)")
    add("--shard_size", metavar="SIZE", help="such as 128MiB, instead of --num_shards")
    add(
        "--output_layout",
        choices=LAYOUTS,
        default="flat",
        help="how shards lie in OUT. flat: side by side; tfx: a folder for each split, as TFX has them (default: flat; the same bytes)",
    )
    add("--describe", action="append", default=[], metavar="FEATURE=TEXT", help="what a feature is, for who reads the data set")
    add("--no_report", action="store_true", help="write no report.html, the page that shows what is in OUT")
    add(
        "--about",
        action="append",
        default=[],
        metavar="WHAT=TEXT",
        help=f"what the card of the data set (README.md) says: {', '.join(ABOUT)}",
    )


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    """Adds the options for the run itself and for the resumption of an earlier run."""
    add = group.add_argument
    add(
        "--store_timeout",
        type=float,
        default=STORE_TIMEOUT,
        metavar="SECONDS",
        help=f"give up on an object store that answers nothing useful for so long; --resume goes on (default: {STORE_TIMEOUT})",
    )
    add(
        "--shared_filesystem",
        action="store_true",
        help="a cluster's workers see the local paths that are given (NFS, Lustre, Filestore)",
    )
    add("--estimate", action="store_true", help="say what a run would write, move and take, and do nothing")
    add("--wait", action="store_true", help="for the end of a Dataflow job; all others are waited for in any case")
    add("--overwrite", action="store_true", help="replace a data set at OUT, once the new one is whole")
    left = group.add_mutually_exclusive_group()
    left.add_argument(
        "--resume",
        action="store_true",
        help="go on from what a run to OUT has left that was killed, or whose engine failed, with the same options: the shards that are "
        "there stay; where nothing is there, begin",
    )
    left.add_argument("--restart", action="store_true", help="remove what such a run has left, and begin anew")


def make_config(arguments: argparse.Namespace) -> PrepareConfig:
    """Converts the arguments of `recordmill prepare` to its configuration.

    The only files that the function reads are the files in `--label_names` and `--label_names_from`.

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
        split_folders=None if arguments.split_folders is None else arguments.split_folders == "yes",
        folds=arguments.folds,
        stratify=() if arguments.stratify is None else parse_names("--stratify", arguments.stratify),
        group_pattern=arguments.group_pattern,
        splits_from=None if arguments.splits_from is None else parse_directory("--splits_from", arguments.splits_from),
        num_shards=None if arguments.num_shards is None else parse_num_shards(arguments.num_shards),
        shard_bytes=None if arguments.shard_size is None else parse_size(arguments.shard_size),
        check=arguments.check,
        max_bad_fraction=arguments.max_bad_fraction,
        output_layout=arguments.output_layout,
        descriptions=parse_descriptions(arguments.describe),
        has_report=not arguments.no_report,
        duplicates=arguments.duplicates,
        duplicate_distance=_duplicate_distance(arguments),
        exact_only=arguments.exact_only,
        move_to=arguments.move_to,
        about=parse_about(arguments.about),
        follow_links=arguments.follow_links,
        ignore=parse_patterns(arguments.ignore),
        source=make_source_config(arguments),
        images=make_image_config(arguments),
    )


def _duplicate_distance(arguments: argparse.Namespace) -> int:
    """Returns `--duplicate_distance` or its default.

    Raises:
        UserError: The option is given, even with its default value, but other options make it useless.
    """
    distance = arguments.duplicate_distance
    check_of_duplicates(arguments.duplicates, {"duplicate_distance": distance})
    if arguments.exact_only and distance is not None:
        raise UserError("--exact_only and --duplicate_distance exclude each other; expected one of them")
    return MAX_DUPLICATE_DISTANCE if distance is None else distance


def make_on_left(arguments: argparse.Namespace) -> OnLeft:
    """Returns the action for an unfinished earlier run, as chosen by `--resume` and `--restart`."""
    if arguments.resume:
        return OnLeft.RESUME
    return OnLeft.RESTART if arguments.restart else OnLeft.REFUSE


def make_source_config(arguments: argparse.Namespace) -> SourceConfig:
    """Converts the source arguments of `recordmill prepare` to the configuration of the source.

    Raises:
        UserError: A value is invalid, or two options exclude each other.
    """
    if arguments.layout is not None and arguments.record_layout is not None:
        raise UserError("--layout is of --source=tfrecord, --record_layout of --source=fixed_length; expected one of them")
    label_names, label_names_of = parse_label_names(arguments.label_names)
    return SourceConfig(
        kind=arguments.source,
        has_images=arguments.image != "none",
        column_names=tuple(name.strip() for name in arguments.column_names.split(",")) if arguments.column_names is not None else (),
        image_root=arguments.image_root,
        image_suffix=arguments.image_suffix,
        **{f"{column}_column": getattr(arguments, f"{column}_column") for column in _COLUMNS},
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
        layout=arguments.layout or arguments.record_layout,
        header_bytes=arguments.header_bytes,
        footer_bytes=arguments.footer_bytes,
        skip_lines=arguments.skip_lines,
        comment=arguments.comment,
        class_folder_depth=arguments.class_folder_depth,
    )
