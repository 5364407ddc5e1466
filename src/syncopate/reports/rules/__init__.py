"""Rules: decisions in the words of other libraries, which choose algorithms by them."""
