"""How fast: whole programs against each other, the pair step against the machine's products, growth with size."""
