"""Push: how the gradients of a backward come to who updates by them."""
