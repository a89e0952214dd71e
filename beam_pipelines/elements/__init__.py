"""Data structures that pass between pipeline stages, such as references to inputs, dead letters and statistics.

Statistics use exact sums, so the results do not depend on the order in which Beam processes the inputs.
"""
