"""What becomes of the user's model: what it is made of, who owns it, its state, its new face."""
