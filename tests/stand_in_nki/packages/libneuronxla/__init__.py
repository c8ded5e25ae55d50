"""Imitates libneuronxla."""
