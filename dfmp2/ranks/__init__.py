"""One calculation over several processes: who they are, what they share, and what happens when one of them ends."""
