"""Names of splits, as users give them to folders and files."""

# Folders that users name so, and the split that they mean.
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}
