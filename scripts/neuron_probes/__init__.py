"""Questions that only a Trainium device can answer, each with the kernel that asks it and the rule that decides."""
