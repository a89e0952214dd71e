"""Sources for record files that other tools wrote: `tfrecord` and `webdataset`.

Supported files are TFRecord, ArrayRecord and tar files. Each source yields references that contain the position of an
image in its file and the values of all other fields. Images in compressed files are copied to temporary files, because
compressed files cannot be read by offset.
"""
