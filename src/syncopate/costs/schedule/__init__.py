"""Schedule: what one schedule takes on a cluster: its messages, the links they share, its price."""
