"""Sources for files with many examples each, written by other tools: `tfrecord` and `webdataset`.

The input is TFRecord, ArrayRecord or tar files. The output is references with the position of each image in its file,
and the values of the other fields. Images in compressed files are copied to the spool, because compressed files cannot
be read by offset.
"""
