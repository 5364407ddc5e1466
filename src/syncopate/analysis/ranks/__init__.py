"""How ranks differ: which are late, which the others wait for, how computation varies."""
