"""Turns a heap of images and labels into a globally shuffled, sharded TFRecord data set, with Apache Beam.

Data go from left to right, and each room says in its `__init__` what comes in and what goes out:

    __main__ lean launch pipeline   the command; what of Beam it imports; one run of it from outside; the whole graph on one page
    options config runners          what the user typed; what it means; what each engine needs
    sources splits shuffle          the stages: list, settle splits where a hash does not, plan,
    shards publish                  write, sum up; none imports another, `pipeline` alone composes them
    verify quality leaks repair     what is done with a data set that is written
    transform export
    report                          the page of a data set, for people
    images                          what is checked and stored of an image, and what follows it
    elements tfrecord               what travels between stages; the record format
    parallel storage                every core; disks and object stores
    errors quiet                    what a user is told; libraries that would tell more

A room imports those below it, never the other way round: `tests/test_rooms.py` has the table.
"""
