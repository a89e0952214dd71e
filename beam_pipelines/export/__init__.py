"""`recordmill export`: converts a dataset into other formats.

The input is a dataset on a disk or in an object store. The sources are not needed. If an export fails, no output
directory is created. A Beam pipeline with one element per shard reads each shard once, in order, and decodes no image.

    export_job     the checked job: dataset, format and output
    export         the Beam graph, and the summary of the result
    export_shard   converts one shard with one of the next five modules
    webdataset  parquet  image_folder  record_files  dali_index
    examples       reads the features of a record
    export_objects converts the objects of an example
    safe_names     turns keys and class names into safe paths
"""
