"""Publishes a dataset: checks counts, writes metadata, and renames the output directory.

At any time, the output directory contains either a complete dataset or files that readers reject. This package also
finds the files of interrupted runs, which later runs can resume.
"""
