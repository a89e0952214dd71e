"""Defines Recordmill's pipeline options for object stores. Beam sends these options to all workers."""

import argparse

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.storage import STORE_TIMEOUT


class StoreTimeout(PipelineOptions):
    """The option `--store_timeout`, which limits how long workers wait for an unavailable object store."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--store_timeout", type=float, default=STORE_TIMEOUT)
