"""Provides pools of worker processes, read-ahead threads, progress counts and signal handling."""
