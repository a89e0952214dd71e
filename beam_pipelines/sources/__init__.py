"""Sources list inputs with their labels, and define how the inputs are read.

A source can be a folder, a table, a set of annotation files, or a set of record files that third-party tools wrote. The
Beam transform `ListImages` outputs references to all inputs, and one `Listing` with facts about the inputs. During
listing, images are read only if they cannot be read by byte offset later. These images are copied to temporary files.

    folders      files and class folders
    tables       rows with image paths
    annotated    boxes and masks in separate files
    arrays       pixels without an image format
    records      container files from other tools
    cells        cells of rows, converted to the kind of their column
"""
