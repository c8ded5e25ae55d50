"""Imitates torch_neuronx."""
