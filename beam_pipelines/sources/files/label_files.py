"""Detects label files by their first bytes and extension, and suggests how to read or convert them."""

import os
import re
from typing import NamedTuple

from beam_pipelines.errors import UserError, printable
from beam_pipelines.images.foreign_formats import recognise_foreign
from beam_pipelines.images.image_headers import identify
from beam_pipelines.sources.files.read_advice import UNPACKERS, coco_options, list_root, table_advice, unpack_advice
from beam_pipelines.storage.files import files_at, is_remote

_HEAD_BYTES = 1 << 16
_NOT_READ = "This format is not supported."
_READ_COCO = "pass --input=FILE.json --source=coco --image_root=FOLDER"
_CONVERT = f"{_NOT_READ} Convert them to COCO JSON, and {_READ_COCO}."
_TO_PNG = f"{_NOT_READ} Convert them to PNG."
_ARRAYS = "Save its arrays with numpy.savez, and read the .npz file with --source=arrays."
# First bytes, their offset, name, advice.
_MAGIC = [
    (b"\x89HDF\r\n\x1a\n", 0, "HDF5", f"{_NOT_READ} {_ARRAYS}"),
    (b"MATLAB 5.0", 0, "MATLAB data", f"{_NOT_READ} {_ARRAYS}"),
    (b"DICM", 128, "DICOM images", _TO_PNG),
    (b"Rar!", 0, "an archive", "{unpack}"),
    (b"7z\xbc\xaf", 0, "an archive", "{unpack}"),
]
_IMAGE_ENDS = {"jpeg": "jpg", "tiff": "tif"}  # formats whose usual extension differs from their name
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_RECORDS = "TFRecords", "Read them with --input={path} --source=tfrecord."
_ENDS = {
    (".npz", ".npy"): ("NumPy arrays", "Read them with --input={path} --source=arrays."),
    (*UNPACKERS,): ("an archive", "{unpack}"),
    (".tar", ".tar.gz", ".tgz"): (
        "a tar archive",
        "Read it as a WebDataset with --input={path} --source=webdataset. If it contains class folders, unpack it.",
    ),
    ("class_dict.csv", "class_dict_seg.csv", "label_colors.txt", "labelmap.txt"): (
        "the classes of the colors of masks",
        "Read the images and masks with --source=masks --mask_colors={path}.",
    ),
    (".tfrecord", ".tfrecords", ".tfrec", ".record", ".tfrecord.gz", ".array_record"): _RECORDS,
    (".h5", ".hdf5"): _MAGIC[0][2:],
    (".mat",): _MAGIC[1][2:],
    (".dcm",): _MAGIC[2][2:],
    (".pkl", ".pickle"): ("pickles", f"Pickles are never opened. {_ARRAYS}"),
}
TABLE_ENDINGS = tuple(f"{end}{more}" for end in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet") for more in ("", ".gz"))
_COCO = "Read them with {coco}."
COCO = "COCO annotations"
LABELME = "LabelMe labels"
CVAT = "CVAT labels"
LABEL_STUDIO = "Label Studio labels"
VIA = "VIA labels"
KITTI = "KITTI labels"
VISDRONE = "VisDrone labels"
WIDER_FACE = "WIDER FACE labels"
_READ_VIA = "Read them with --input={path} --source=via."
_READ_LABEL_STUDIO = "Read them with --input={path} --source=label_studio --image_root=FOLDER."
_JSON_KEYS = [
    ({"shapes", "imagePath"}, LABELME, "Read them with --source=labelme."),
    ({"shapes", "shape_type"}, LABELME, "Read them with --source=labelme."),
    ({"_via_img_metadata"}, VIA, _READ_VIA),
    ({"images", "file_name"}, COCO, _COCO),
    ({"images", "annotations"}, COCO, _COCO),
    ({"images", "categories"}, COCO, _COCO),
    ({"filename", "regions"}, VIA, _READ_VIA),
    ({"annotations", "data"}, LABEL_STUDIO, _READ_LABEL_STUDIO),
    ({"result", "completed_by"}, LABEL_STUDIO, _READ_LABEL_STUDIO),
    ({"annotator", "id"}, LABEL_STUDIO, _READ_LABEL_STUDIO),  # the JSON-MIN export
    ({"imgHeight", "objects"}, "Cityscapes labels", _CONVERT),
    ({"classTitle", "objects"}, "Supervisely labels", _CONVERT),
    ({"image", "annotations"}, "CreateML labels", _CONVERT),
    ({"labels", "box2d"}, "BDD100K labels", _CONVERT),
]
_NUMBER = r"-?\d+(?:\.\d*)?(?:e-?\d+)?"
YOLO_LABELS = "YOLO labels"
_YOLO = re.compile(r"\d+(?:\.0*)?(?:[ \t]+(?:0?\.\d+|[01](?:\.\d*)?|\d(?:\.\d+)?e-\d+)){4,}[ \t]*")
_KITTI = re.compile(rf"[A-Za-z][\w-]*(?: {_NUMBER}){{14,15}}")
_VISDRONE = re.compile(r"(?:-?\d+(?:\.\d+)?,){5}(?:\d|1[01]),-?\d,-?\d,?")
_WIDER_FACE = re.compile(r"\S.*\.(?:jpe?g|png)\s*\n\s*(\d{1,6})\s*\n\s*(?:-?\d+ ){9}-?\d+\s", re.IGNORECASE)
_DOTA = re.compile(rf"(?:{_NUMBER} ){{8}}\S+(?: \d+)?")
_LIST = re.compile(r"\S.*\.(?:jpe?g|png|bmp|gif|webp|tiff?|hei[cf]|avif|jp2|p[pgn]m)\b.*", re.IGNORECASE)


class Format(NamedTuple):
    """A detected format.

    Attributes:
        name: The name of the format, for messages such as "looks like NAME".
        advice: The command or conversion to use instead.
    """

    name: str
    advice: str

    @property
    def is_read(self) -> bool:
        """Whether a source reads the format."""
        return self.advice.startswith("Read ")


def recognise(path: str, pattern: str = "", head: bytes | None = None) -> Format | None:
    """Returns the format of a file, or None if the format is unknown or the file cannot be read.

    Args:
        path: The path of the file.
        pattern: A pattern that matches the paths of all files like this file, if there are several. Used in the advice
            for tables.
        head: The first bytes of the file, if they are known.
    """
    head, name = read_head(path) if head is None else head, path.lower()
    by_name = next((known for ends, known in _ENDS.items() if name.endswith(ends)), None)
    if known := _by_content(name, head) or by_name or _foreign_image(head):
        advice = known[1].replace("{path}", printable(path)).replace("{coco}", coco_options(path))
        advice = advice.replace("{root}", list_root(path, head)) if "{root}" in advice else advice
        return Format(known[0], advice.replace("{unpack}", unpack_advice(path)))
    return Format("a table", table_advice(path, head, pattern)) if name.endswith(TABLE_ENDINGS) else None


def format_of_content(name: str, head: bytes) -> str:
    """Detects a format by the name and the first bytes of a file. Returns "" if the format is unknown."""
    return (_by_content(name.lower(), head) or ("",))[0]


def reject_other_format(path: str, head: bytes | None = None) -> None:
    """Raises `UserError` if the first bytes of a file, or `head`, show a format that no source reads."""
    known = recognise(path, head=head)
    if known and not known.is_read:
        raise UserError(f"--input={printable(path)}: looks like {known.name}. {known.advice}")


def read_head(path: str) -> bytes:
    """Returns the first 64 KiB of a file, or b"" if the file cannot be read."""
    try:
        return files_at(path).read_range(path, 0, _HEAD_BYTES) if is_remote(path) or os.path.isfile(path) else b""
    except OSError:
        return b""


def _by_content(name: str, head: bytes) -> tuple[str, str] | None:
    for magic, start, *known in _MAGIC:
        if head[start : start + len(magic)] == magic:
            return tuple(known)
    if _PICKLE.match(head) and not name.endswith(TABLE_ENDINGS):
        return next(known for ends, known in _ENDS.items() if ".pkl" in ends)
    if (image_format := identify(head)) not in (None, "bmp", "ppm"):  # two letters are not enough evidence
        return f"{image_format.upper()} images", f"Rename them to .{_IMAGE_ENDS.get(image_format, image_format)}."
    text = head.decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    if text.startswith("<?xml") or name.endswith(".xml"):
        return _xml_format(text)
    if name.endswith(".json"):
        return _json_format(text)
    if name.endswith(".csv"):
        return (VIA, _READ_VIA) if "region_shape_attributes" in text.partition("\n")[0] else None
    return _text_format(text) if name.endswith(".txt") else None


def _foreign_image(head: bytes) -> tuple[str, str] | None:
    known = recognise_foreign(head)
    return (known.name, f"{_NOT_READ} Convert it, for example with: {known.command}.") if known and known.command else None


def _xml_format(text: str) -> tuple[str, str] | None:
    if re.search(r"<annotations[\s>]", text):
        return CVAT, "Read them with --input={path} --source=cvat."
    return ("Pascal VOC annotations", "Read them with --source=voc.") if re.search(r"<annotation[\s>]", text) else None


def _json_format(text: str) -> tuple[str, str] | None:
    keys = set(re.findall(r'"((?:[^"\\]|\\.)*)"\s*:', text))
    for wanted, *known in _JSON_KEYS:
        if wanted <= keys:
            return tuple(known)
    if re.match(r"\[\s*\{", text):
        convert = "Convert it to JSON Lines (jq -c '.[]' IN.json > OUT.jsonl), and pass --input=OUT.jsonl."
        return "a JSON list of rows", convert
    return None


def _text_format(text: str) -> tuple[str, str] | None:
    if _WIDER_FACE.match(text):
        return WIDER_FACE, "Read them with --source=wider_face --input={path} --image_root=FOLDER."
    lines = [line.strip() for line in text.splitlines()[:20] if line.strip()]
    for pattern, *known in (
        (_YOLO, YOLO_LABELS, "Use --source=yolo, and pass the folder of images/ and labels/, or its data.yaml, as --input."),
        (_KITTI, KITTI, "Read them with --source=kitti."),
        (_VISDRONE, VISDRONE, "Read them with --source=visdrone."),
        (_DOTA, "DOTA labels", _CONVERT),
        (_LIST, "a list of images", "Read it with --source=text --input={path} {root}."),
    ):
        if lines and all(map(pattern.fullmatch, lines[:-1] or lines)):
            return tuple(known)
    return None
