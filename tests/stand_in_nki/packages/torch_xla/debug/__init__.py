"""Imitates torch_xla.debug."""
