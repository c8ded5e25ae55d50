"""Many molecules: a pool of worker processes on this host, array jobs of Slurm and AWS Batch on
many."""
