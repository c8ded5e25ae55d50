"""Array jobs: what a batch needs from a scheduler, and how Slurm and AWS Batch are told."""
