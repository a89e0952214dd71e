"""Maps common names of split folders and files, such as `val`, to split names."""

# Folder name -> split.
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}
