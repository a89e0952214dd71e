"""Reads the metadata files of a published dataset and compares their checksums with the manifest."""

import json
from typing import Any

from beam_pipelines.errors import UserError, printable
from beam_pipelines.storage.files import files_at
from tf_input.dataset_format import Manifest


def read_object(directory: str, manifest: Manifest, name: str) -> dict[str, Any]:
    """Reads a JSON metadata file and compares its checksum with the manifest.

    Raises:
        UserError: The file is corrupt or was changed. The message names the file.
        OSError: The file cannot be read.
    """
    path = f"{directory}/{name}"
    data = files_at(path).read(path)
    try:
        manifest.check_file(name, data)
    except ValueError as error:
        raise UserError(printable(f"{directory}/{error}"), path) from None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:  # Invalid JSON or UTF-8.
        raise UserError(printable(f"{path} is not valid JSON: {error}"), path) from None
    if not isinstance(fields, dict):
        raise UserError(f"{printable(path)} has a JSON {type(fields).__name__} instead of an object.")
    return fields
