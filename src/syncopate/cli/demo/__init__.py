"""``syncopate demo``: the whole story on local processes and real data, in about two minutes."""
