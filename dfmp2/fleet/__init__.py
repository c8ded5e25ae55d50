"""What a calculation would take on other machines: many molecules on several instances, one on many ranks. On paper."""
