"""Calculations of many molecules: a pool of worker processes on this host, or array jobs of Slurm
and AWS Batch on many."""
