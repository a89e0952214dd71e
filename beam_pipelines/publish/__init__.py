"""Turns written shards into a published dataset: checks counts, writes metadata, and renames the output directory.

The output directory contains either a complete dataset or files that no reader accepts. This package also finds the
files of interrupted runs, which later runs can resume.
"""
