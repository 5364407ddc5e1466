"""What is checked before anything is built, and on what the ranks agree."""
