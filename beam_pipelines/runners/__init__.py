"""Supports several Beam runners: DirectRunner, Prism, Flink, Dataflow and other portable runners.

Each module sets default options for a runner, creates the runner, and waits for the job. Options that a runner does not
support raise an error before the job starts.
"""
