"""Replay: history folded again, with other settings or scorers, into an output of its own. docs/replay.md.

outputs    what an output is, and where it is written down
selection  which groups are wanted; bounds: which events have to be read for them
share      one process's part of a replay; partition: one partition's steps; pipeline: groups while they are scored
workers    several processes
"""
