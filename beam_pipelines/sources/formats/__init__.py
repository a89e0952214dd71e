"""The formats that a source can have. Each module or folder defines one format, in one class."""
