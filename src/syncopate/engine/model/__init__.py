"""What becomes of the user's model: its parts, its one engine, its state, its class."""
