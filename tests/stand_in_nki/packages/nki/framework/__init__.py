"""Imitates nki.framework."""
