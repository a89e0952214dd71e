"""Lists files and folders, and implements the source `image_folder` for class folders.

The input is a root. The output is the paths of files (`file_listing`), which never lead outside the root (`roots`),
with the classes and splits of their folders (`layouts`). `other_files` decides which files that are not images are
reported.
"""
