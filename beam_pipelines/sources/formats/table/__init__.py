"""Source `table`: CSV, JSON Lines and Parquet."""

from beam_pipelines.sources.formats.table.table import Table

__all__ = ["Table"]
