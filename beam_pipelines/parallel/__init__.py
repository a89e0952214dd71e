"""Work on every core, and what is told of it: light processes, threads that read ahead, counts, signals.

What comes in are functions and their arguments; what goes out are their results, in order. Nothing here knows what the work is.
"""
