"""Lists files and folders, and implements the source `image_folder` for class folders.

The input is a root. The sources in this package list file paths below a root folder, with the classes and splits of
their folders. The module `other_files` decides which files that are not images are reported.
"""
