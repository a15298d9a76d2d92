"""A reading's life: where it was stored, what became of it at each hop, and when."""
