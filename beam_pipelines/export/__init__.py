"""Implements `recordmill export`, which converts a dataset into other formats.

The dataset can be on a disk or in an object store. Its sources are not needed. If an export fails, no output directory
is created. A Beam pipeline with one element per shard reads each shard once, in order, and decodes no images.

    export_job       the checked parameters: dataset, format and output
    export           the Beam pipeline, and the summary of the result
    export_shard     converts one shard with one of the next five modules
    webdataset  parquet  image_folder  record_files  dali_index
    examples         reads the features of a record
    export_objects   converts the objects of an example
    safe_names       converts keys and class names to safe paths
"""
