"""Where images and labels come from: each source lists its inputs, and says how one of them is read again.

What comes in is a folder, a table, annotations or records that others wrote; what goes out of `ListImages` are sorted runs of references
in the spool, and one `Listing` of all that is known. No image is read, but where it cannot be read again by its place: then it is spooled.

    folders      files, and folders of them by class
    tables       rows with paths of images
    annotated    boxes and masks in files of their own
    arrays       pixels without a format
    records      containers that others wrote
    cells        what is in a cell of a row, as its column's kind expects
"""
