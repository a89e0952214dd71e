"""What each engine needs, and what suits it: the DirectRunner, Prism, Flink, Dataflow.

What comes in are a configuration and Beam's options; what goes out are options that are fit to run, a runner, and how its job is waited
for and stopped. An engine that cannot do what is asked of it is refused here, before a job starts.
"""
