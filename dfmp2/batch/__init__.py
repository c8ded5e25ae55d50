"""Many molecules: a manifest, worker processes that stay warm, and results that are never computed twice."""
