"""Reads the manifest and `run.json` of a dataset."""

import json
from typing import Mapping, NamedTuple

from beam_pipelines.config.prepare_options import PrepareOptions
from beam_pipelines.config.values import NAME_PATTERN
from beam_pipelines.elements import plain_json
from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import files_at, is_remote
from tf_input.dataset_format import (
    MANIFEST,
    RUN,
    Manifest,
    catalog_name,
    decode_manifest,
    index_name,
    not_a_dataset,
    read_manifest,
    shard_name,
)


class RecordedRun(NamedTuple):
    """The `recordmill prepare` run that made a dataset, as recorded in `run.json`.

    Attributes:
        options: The exact options of the run.
        python: The Python version that the run used.
        versions: A mapping from package to its version in the run.
    """

    options: PrepareOptions
    python: str
    versions: Mapping[str, str]


def read_dataset(directory: str, command: str) -> Manifest:
    """Reads the manifest of a dataset on a local disk or a mounted file system.

    Raises:
        UserError: The directory is a URL, or is not a dataset.
    """
    if is_remote(directory):
        raise UserError(
            f"{directory}: `recordmill {command}` needs a local directory, not a URL. Mount the store, and give the "
            "path of the dataset."
        )
    try:
        return read_manifest(directory)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(printable(reason if str(directory) in reason else f"{directory}: {reason}")) from None


def open_dataset(directory: str) -> tuple[Manifest, bool]:
    """Returns the manifest of a dataset, and whether the file is the one that Recordmill wrote.

    Raises:
        UserError: There is no dataset, or its manifest is invalid.
        OSError: A store does not return the manifest.
    """
    path = f"{directory}/{MANIFEST}"
    try:
        if not files_at(path).exists(path):
            raise not_a_dataset(directory)
        data = files_at(path).read(path)
        manifest = decode_manifest(data, path)
        return manifest, manifest.to_json().encode() == data
    except UnicodeError as error:  # JSON strings can contain unpaired surrogates.
        raise UserError(f"{printable(path)}: {error}") from None
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UserError(printable(str(error))) from None


def reject_verbatim(directory: str, manifest: Manifest, command: str) -> None:
    """Raises `UserError` if the command cannot read the records of a dataset, because their contents are unknown."""
    if manifest.is_verbatim:
        raise UserError(
            f"{printable(directory)}: `recordmill {command}` needs examples, but the dataset was prepared with "
            "--records=verbatim. If the records are examples, prepare them again without --records."
        )


def check_names(directory: str, manifest: Manifest) -> None:
    """Checks that the file names in a manifest match the dataset and its splits.

    The check protects against tampered manifests, which could refer to files outside the dataset.

    Raises:
        UserError: A file has another name, or a split has no shards.
    """
    for name in (manifest.name, *manifest.splits):
        if not NAME_PATTERN.fullmatch(name):
            problem = f"the manifest has the invalid name {printable(name)[:80]!r}"
            raise UserError(
                f"{printable(directory)}: {problem}. Names consist of letters, digits and '_', and start with a letter."
            )
    if not manifest.splits or not all(manifest.splits.values()):
        raise UserError(
            f"{printable(directory)}: the manifest has no split, or a split without shards. Prepare the dataset again."
        )
    for split, infos in manifest.splits.items():
        for shard_number, info in enumerate(infos):
            address = (manifest.name, split, shard_number, len(infos))
            expected = shard_name(*address), index_name(*address), catalog_name(*address) if info.catalog else ""
            for name, wanted in zip((info.name, info.index, info.catalog), expected):
                if name != wanted:
                    raise UserError(
                        f"{printable(directory)}: the manifest names the file {printable(name)[:80]!r}, but the name must "
                        f"be {wanted!r}."
                    )


def read_how_made(directory: str, manifest: Manifest) -> RecordedRun:
    """Reads `run.json` of a dataset and checks that it belongs to the manifest.

    Raises:
        UserError: `run.json` cannot be read, or belongs to another dataset.
    """
    path = f"{directory}/{RUN}"
    try:
        run = read_run(files_at(path).read(path))
    except (OSError, ValueError) as error:
        reason = " ".join(str((isinstance(error, OSError) and error.strerror) or error).split())
        raise UserError(
            f"{printable(path)} is missing or corrupt: {reason}. Without it, shards cannot be rebuilt. Prepare the "
            "dataset again."
        ) from None
    if run is None:
        raise UserError(f"{printable(path)} was not written by `recordmill prepare`, so its shards cannot be rebuilt.")
    if (run.options.name, run.options.seed) != (manifest.name, manifest.seed):
        raise UserError(
            f"{printable(path)} belongs to dataset {run.options.name!r} with seed {run.options.seed}, but the manifest to "
            f"{manifest.name!r} with seed {manifest.seed}. Prepare the dataset again."
        )
    return run


def read_run(data: bytes) -> RecordedRun | None:
    """Decodes a `run.json` file. Returns None if it was not written by `recordmill prepare`.

    Raises:
        ValueError: The file is corrupt, or was written by another version.
    """
    fields = json.loads(data)
    try:
        if "config" not in fields:
            return None
        return RecordedRun(plain_json.loads(fields["config"].encode(), PrepareOptions), fields["python"], dict(fields["versions"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or invalid: {error!r}") from error
