"""What a run needs to go on after it was stopped: its state, when it is saved, and whose it is."""
