"""Rules: decisions as files by which other libraries choose their algorithms."""
