"""Datasets that were changed for a test, as if they had been written so."""

import dataclasses
import pathlib

from tf_input.dataset_format import MANIFEST, REPORT, read_manifest, sum_of


def sign(directory: pathlib.Path) -> None:
    """Puts the sums of the metadata files as they are now into the manifest; missing files and the page, which is derived, are left out."""
    manifest = read_manifest(directory)
    sums = {}
    for name in manifest.files:
        if name != REPORT and (directory / name).exists():
            with open(directory / name, "rb") as file:
                sums[name] = sum_of(file)
    (directory / MANIFEST).write_text(dataclasses.replace(manifest, files=sums).to_json())
