"""Updates the checksums of datasets that a test has changed."""

import dataclasses
import pathlib

from tf_input.dataset_format import MANIFEST, REPORT, read_manifest, sum_of


def update_checksums(directory: pathlib.Path) -> None:
    """Updates the checksums of metadata files in the manifest, and removes the entries of missing files."""
    manifest = read_manifest(directory)
    sums = {}
    for name in manifest.files:
        if name != REPORT and (directory / name).exists():
            with open(directory / name, "rb") as file:
                sums[name] = sum_of(file)
    (directory / MANIFEST).write_text(dataclasses.replace(manifest, files=sums).to_json())
