"""Push: how the gradients of a backward come to the ranks that update by them."""
