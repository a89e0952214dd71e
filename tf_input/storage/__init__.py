"""Reads the files and records of a dataset in a local directory, in an object store or on a web server.

The interface `Files` reads files and byte ranges, and returns file sizes. Any number of threads can use one `Files`
object at the same time. A cache (`cache`) implements `Files` on top of another implementation.

    paths                paths and URLs
    files, open_files    the interface `Files`; the choice of its implementation
    local_files          local disks and mounted file systems
    object_stores        gs://, s3://, az:// and https://, with obstore
    credentials          credentials and endpoints, from the locations that the tools of each cloud use
    other_files          all other URLs, with fsspec
    cache, cache_space   blocks of remote files on a local disk; the size limit of the cache
    store                the shards and indexes of a dataset
    index, frames        the byte range of each record in a shard; the TFRecord framing
    record_reader        reads records anywhere in a split, with few requests
    record_chunks        checks records in memory and copies them
    window_reader        reads the windows of an epoch ahead
    corrupt_records      reports of corrupt records
"""
