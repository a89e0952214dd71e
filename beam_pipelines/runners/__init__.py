"""Supports several Beam runners: DirectRunner, Prism, Flink, Dataflow and other portable runners.

Each module sets default options for its runner, creates the runner, and waits for the job. Options that a runner cannot
support raise an error before the job starts.
"""
