"""Suggests commands that unpack archives."""

import shlex

from beam_pipelines.errors import printable
from beam_pipelines.storage.files import is_remote

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


def unpack_advice(path: str, inner_folder: str = "") -> str:
    """Returns advice to unpack an archive with a command that depends on the ending of its name.

    Args:
        path: The path of the archive.
        inner_folder: The folder in the archive that contains the class folders; empty if this is unknown.
    """
    commands = UNPACKERS | _TARS
    end = next((end for end in sorted(commands, key=len, reverse=True) if path.lower().endswith(end)), "")
    if not end:
        return "Unpack it into a folder, and pass the folder as --input."
    name = path.rpartition("/")[2] if is_remote(path) else path
    folder = name[: -len(end)].rstrip("/") or "images"
    command = commands[end].format(path=shlex.quote(printable(name)), folder=shlex.quote(printable(folder)))
    first = "Copy it to a local disk, unpack it" if is_remote(path) else "Unpack it"
    unpacked = shlex.quote(printable(f"{folder}/{inner_folder}".rstrip("/")))
    return f"{first} with `{command}`, and pass --input={unpacked}{'' if inner_folder else ', or the only folder in it'}."
