"""What `leaks.json` says of a run's shards once they are written."""

from typing import Any

from beam_pipelines.config.prepare_job import PrepareJob
from beam_pipelines.errors import RunError
from beam_pipelines.leaks.find_leaks import find_leaks
from beam_pipelines.leaks.image_table import read_table
from tf_input.dataset_format import Manifest


def find_written_leaks(config: PrepareJob, manifest: Manifest) -> dict[str, Any]:
    """Counts what is apart, from the catalogs in the working directory of a run with `--duplicates`; RunError where these are not whole."""
    table = read_table(config.working_directory, manifest)
    if table is None:
        raise RunError("a catalog has no hashes of images; expected those of all")
    return find_leaks(table, config.duplicate_distance, config.num_processes)
