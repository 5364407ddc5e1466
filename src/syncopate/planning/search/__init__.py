"""Search: what the recurrence cannot plan exactly, planned by playing whole iterations."""
