"""AWS Batch: the job definition, the array job, and what runs inside its containers."""
