"""Sources list inputs with their labels, and define how the inputs are read.

A source can be a folder, a table, a set of annotation files, or a set of record files that third-party tools wrote. The
Beam transform `ListImages` outputs references to all inputs, and one `Listing` with facts about the inputs. During
listing, images are read only if they cannot be read by byte offset later. These images are copied to temporary files.

    formats      one module or folder for each format
    listing      the transform that lists a source, and the facts that it collects
    files        listings of files and folders, and names of folders
    rows         files of rows and records, and the values of their fields
    cells        cells of rows, converted to the kind of their column
    annotations  annotations of images that several formats share
    arrays       arrays of pixels and other values
"""
