"""Is this installation, this machine and this folder fit for a run? One small check per question (`dfmp2 doctor`)."""
