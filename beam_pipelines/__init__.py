"""Converts images and labels to a globally shuffled, sharded TFRecord dataset with Apache Beam.

The `__init__` module of each package describes the package:

    __main__ commands               the command line
    launch pipeline                 a `prepare` run; its Beam pipeline
    options config runners          command-line options; configurations; Beam runners
    sources splits shuffle          stages of the pipeline: list inputs, assign splits, plan shards,
    shards publish                  write shards, publish the dataset
    verify quality leaks repair     commands for existing datasets
    transform export
    report                          the HTML report of a dataset
    images                          checks, conversion and analysis of images
    elements tfrecord               elements of PCollections; the record format
    parallel storage                worker processes; disks and object stores
    lean quiet errors               partial import of Beam; suppression of library logs; errors for the user

A package imports only packages below it, and stages do not import each other. `tests/test_import_rules.py` checks this.
"""
