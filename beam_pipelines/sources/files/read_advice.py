"""Suggests commands that read or unpack a file."""

import csv
import itertools
import os
import posixpath
import re
import shlex
from typing import Sequence

from beam_pipelines.errors import printable
from beam_pipelines.images.images import IMAGE_EXTENSIONS
from beam_pipelines.sources.files.split_names import SPLIT_FOLDERS
from beam_pipelines.storage.files import files_at, is_remote

# Ending of an archive -> the command that unpacks it into a folder.
UNPACKERS = {
    ".zip": "unzip -q {path} -d {folder}",
    ".7z": "7z x {path} -o{folder}",
    ".rar": "unrar x {path} {folder}/",
    ".tar.bz2": "mkdir -p {folder} && tar -xjf {path} -C {folder}",
    ".tar.xz": "mkdir -p {folder} && tar -xJf {path} -C {folder}",
    ".tar.zst": "mkdir -p {folder} && tar --zstd -xf {path} -C {folder}",
}
_TARS = {
    ".tar": "mkdir -p {folder} && tar -xf {path} -C {folder}",
    **dict.fromkeys((".tar.gz", ".tgz"), "mkdir -p {folder} && tar -xzf {path} -C {folder}"),
}
_MAX_CHECKS = 60  # maximum number of paths to check in the search for the images that a table names
_MAX_ROWS = 1000
_LABEL_COLUMNS = {"label", "labels", "class", "category", "objects"}  # columns that need no --label
_LABEL_WORD = re.compile("class|label|categor|target", re.IGNORECASE)
_FLAGS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}


def unpack_advice(path: str) -> str:
    """Returns advice on how to unpack an archive, with a command that depends on its file extension."""
    commands = UNPACKERS | _TARS
    end = next((end for end in sorted(commands, key=len, reverse=True) if path.lower().endswith(end)), "")
    if not end:
        return "Unpack it into a folder, and pass the folder as --input."
    name = path.rpartition("/")[2] if is_remote(path) else path
    folder = name[: -len(end)].rstrip("/") or "images"
    command = commands[end].format(path=_quote(name), folder=_quote(folder))
    first = "Copy it to a local disk, unpack it" if is_remote(path) else "Unpack it"
    return f"{first} with `{command}`, and pass --input={_quote(folder)}, or the only folder in it."


def split_advice(path: str, column: str, image: str) -> str:
    """Returns advice on how to divide a column of a table into the columns `image` and `label`. `image` is the start of a
    cell."""
    ending = image[image.rfind(".") :]
    if not path.endswith(".csv") or is_remote(path) or not re.fullmatch(r"\w+", column):
        return f"Split it into two columns, such as image ({printable(image[:80])}) and label"
    output = f"{path.removesuffix('.csv')}_split.csv"
    command = f"sed -e '1s/{column}/image,label/' -e 's/\\{ending}_/{ending},/' {shlex.quote(path)} > {shlex.quote(output)}"
    return f"Split it into the columns image and label with: {command} and pass --input={shlex.quote(output)}"


def coco_options(path: str) -> str:
    """Returns the options for reading a COCO file. For a file in a usual place, such as
    `annotations/instances_train.json`, `--input` is the folder with all splits."""
    folder, _, name = path.rpartition("/")
    above, _, own = folder.rpartition("/")
    is_instances = re.fullmatch(r"instances_.+\.json", name)
    if not is_instances and name != "_annotations.coco.json":
        return f"--input={printable(path)} --source=coco --image_root=FOLDER"
    has_root_above = own == "annotations" if is_instances else own.lower() in SPLIT_FOLDERS
    return f"--input={printable((above if has_root_above else folder) or '.')} --source=coco"


def list_root(path: str, head: bytes) -> str:
    """Returns the `--image_root` option for a text file with image names, given the first bytes of the text file."""
    words = head.decode("utf-8", "replace").lstrip("\ufeff").partition("\n")[0].split()
    name = next((word for word in words if word.lower().endswith(tuple(IMAGE_EXTENSIONS))), words[0])
    folders = _with_subfolders(posixpath.dirname(path) or ".")[: _MAX_CHECKS + 1]
    return f"--image_root={printable(next((root for root in folders if files_at(root).exists(f'{root}/{name}')), 'FOLDER'))}"


def table_advice(path: str, head: bytes, pattern: str = "") -> str:
    """Returns a command that reads a table.

    Args:
        path: The path of the table.
        head: The first bytes of the table.
        pattern: A pattern that matches the paths of all such tables, if there are several, each beside its images.
    """
    read = f"Read them with --input={_quote(pattern)} --source=table" if pattern else f"Read it with --input={_quote(path)}"
    try:
        lines = head.decode().splitlines()[:_MAX_ROWS]
        separator = max(",;\t", key=lines[0].count)
        header, *rows = ([cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator))
        found = _find_images(posixpath.dirname(path) or ".", header, rows[0])
    except (OSError, ValueError, IndexError, csv.Error):  # not a CSV file, or a head that ends within a character
        found = None
    if not found:
        return f"{read}{'' if pattern else ' --image_root=FOLDER'} --image_column=COLUMN --label=COLUMN."
    root, column, suffix = found
    options = [f"--image_column={_quote(column)}", *([f"--image_suffix={suffix}"] if suffix else [])]
    if not pattern:  # the images of HAM10000 are in the folders images_part_1 and images_part_2
        like = re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", root))))
        roots = [root, *(other for other in _with_subfolders(posixpath.dirname(root)) if other != root and like.fullmatch(other))]
        options = [*(f"--image_root={_quote(other)}" for other in roots), *options]
    return f"{read} {' '.join([*options, *_label_option(header, rows, column)])}."


def _find_images(folder: str, header: Sequence[str], row: Sequence[str]) -> tuple[str, str, str] | None:
    """Returns the folder of the image in a row, the column that contains its name, and the extension to append to the
    name."""
    checks = itertools.product(_with_subfolders(folder), zip(header, row), ("", ".jpg", ".png"))
    for root, (column, value), suffix in itertools.islice(checks, _MAX_CHECKS):
        is_name = value and not value.startswith("/") and (suffix or "." in value)
        if is_name and files_at(root).exists(f"{root}/{value}{suffix}"):
            return root, column, suffix
    return None


def _label_option(header: Sequence[str], rows: Sequence[Sequence[str]], image_column: str) -> list[str]:
    """Returns a `--label` option for the columns that are probably labels, or [] if no option is needed."""
    others = [index for index, name in enumerate(header) if name != image_column]
    if any(header[index].lower() in _LABEL_COLUMNS for index in others) or not others:
        return []
    rows = [row for row in rows if len(row) == len(header)]
    flags = [[_FLAGS.get(row[index]) for index in others] for row in rows]
    if len(others) > 1 and not any(None in row for row in flags):
        kind = "one_hot" if all(sum(row) == 1 for row in flags) else "multi_label"
        return [f"--label={_quote(','.join(header[index] for index in others))}:{kind}"]
    repeated = [index for index in others if 1 < len({row[index] for row in rows}) <= len(rows) / 2]
    named = [index for index in others if _LABEL_WORD.search(header[index])]
    return [f"--label={_quote(header[(named or repeated or others)[0]])}"]


def _with_subfolders(folder: str) -> list[str]:
    if is_remote(folder):
        names, _ = files_at(folder).top_level(folder)
    else:
        names = [name for name in os.listdir(folder) if os.path.isdir(f"{folder}/{name}")]
    return [folder, *(f"{folder}/{name}" for name in sorted(names) if not name.startswith("."))]


def _quote(text: str) -> str:
    return shlex.quote(printable(text))
