"""Scratch files: what does not fit into memory, in a folder that belongs to one run and goes with it."""
