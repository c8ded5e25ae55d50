"""Imitates nki._backends."""
