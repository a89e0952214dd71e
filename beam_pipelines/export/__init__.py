"""`recordmill export`: a data set in the formats of others.

What comes in is a data set, on a disk or in a store, and nothing of its sources; what goes out is a directory in one of the formats,
whole, or nothing that looks like one. A Beam pipeline with an element a shard reads each once, in order, and decodes no image.

    export_job     what is exported, checked, and where to
    export         the graph; what is told of its result
    export_shard   one shard: its records go to one of the next five
    webdataset  parquet  image_folder  record_files  dali_index
    examples       what a record has of a feature
    export_objects    and what formats have of objects
    safe_names     keys and class names as paths
"""
