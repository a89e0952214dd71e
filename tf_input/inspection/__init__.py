"""Implements `recordmill inspect`, which shows the contents of a dataset.

The command reads the metadata of a dataset. If the user requests examples, it also reads catalogs and single records.
It prints tables or JSON, and can save an image.

    inspection    the command
    contents      all metadata
    examples      examples that meet a condition, or one example with its image
    pictures      images as files
    drawings      boxes and masks on images
"""
