"""Pull: how weights, or averages of gradients, come to every rank."""
