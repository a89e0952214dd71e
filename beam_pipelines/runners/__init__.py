"""Support for each Beam runner: the DirectRunner, Prism, Flink, Dataflow and other portable runners.

These modules set the runner's default options, create the runner, wait for its job and stop the job. The modules also
check the options, and raise an error before the job starts if the runner cannot run it.
"""
