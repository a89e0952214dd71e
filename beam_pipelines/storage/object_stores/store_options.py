"""What a user says of object stores beside Beam's own options: it goes with them to every worker, on every engine."""

import argparse

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.storage import STORE_TIMEOUT
from beam_pipelines.storage.object_stores.retries import check_timeout


class StoreOptions(PipelineOptions):
    """How long a pipeline's workers wait for a store: `--store_timeout`, in seconds."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--store_timeout", type=float, default=STORE_TIMEOUT)

    def check(self) -> None:
        """Raises UserError unless the options are fit to run."""
        check_timeout(self.store_timeout)
