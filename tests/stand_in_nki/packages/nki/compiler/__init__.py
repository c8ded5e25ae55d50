"""Imitates nki.compiler."""
