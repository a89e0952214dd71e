"""What a run is to do: small frozen dataclasses, checked when they are made.

What comes in are values, from the command line or from code; what goes out says the same to every worker, and travels pickled. Nothing
here reads a file, or knows how a value was typed.
"""
