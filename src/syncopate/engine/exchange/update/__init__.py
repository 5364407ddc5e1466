"""Update: which rank applies the optimizer, to what, and when."""
