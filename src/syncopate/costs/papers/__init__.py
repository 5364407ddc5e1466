"""Papers: the closed forms that the papers print."""
