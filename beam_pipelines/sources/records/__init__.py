"""Containers that others wrote: `tfrecord` (`record_layouts`, `record_directories`, `tfds_layouts`, `record_fields`) and `webdataset` (`tar_samples`).

`containers` finds the files and `row_reader` makes features of their fields; `record_reader`, `example_reader` and `tar_reader` read
the formats, and say where each value lies.
"""
