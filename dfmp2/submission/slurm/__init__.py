"""Slurm: a batch as array scripts that save and requeue themselves, and their way to sbatch."""
