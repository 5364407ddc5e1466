"""Evidence: what may be concluded from what was measured, and what not."""
