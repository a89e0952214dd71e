"""Support for each Beam runner: the DirectRunner, Prism, Flink, Dataflow and other portable runners.

The modules set the default options of a runner, create the runner, wait for its job and stop the job. The modules also
check the options, and raise an error before the job starts if the runner cannot run it.
"""
