"""Proxies: what stands for gradients, weights and optimizer state that are not here yet."""
