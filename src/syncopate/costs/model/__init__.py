"""Model: prices of collectives on a cluster, from schedules and measured curves; the bound."""
