"""Converts images and labels to a globally shuffled, sharded TFRecord dataset with Apache Beam.

The `__init__` module of each package describes its inputs and outputs:

    __main__ lean launch pipeline   the command line; partial import of Beam; a `prepare` run; its pipeline
    options config runners          command-line options; configurations; Beam runners
    sources splits shuffle          the stages of the pipeline: list, assign splits, plan,
    shards publish                  write shards, publish; stages do not import each other, `pipeline` composes them
    verify quality leaks repair     commands for existing datasets
    transform export
    report                          the HTML report of a dataset
    images                          checks, conversion and analysis of images
    elements tfrecord               the elements of PCollections; the record format
    parallel storage                worker processes; disks and object stores
    errors quiet                    errors for the user; suppression of the log messages of libraries

A package imports only packages below it. `tests/test_import_rules.py` checks this.
"""
