"""Defines Recordmill's pipeline options for object stores. Beam sends these options to all workers."""

import argparse

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.storage import STORE_TIMEOUT
from beam_pipelines.storage.object_stores.retries import check_timeout


class StoreOptions(PipelineOptions):
    """The option `--store_timeout`, which limits how long workers wait for an unavailable object store."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--store_timeout", type=float, default=STORE_TIMEOUT)

    def check(self) -> None:
        """Raises `UserError` if the options are invalid."""
        check_timeout(self.store_timeout)
