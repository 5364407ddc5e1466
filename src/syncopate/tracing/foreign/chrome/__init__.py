"""Chrome's trace format: events of one file, the collectives that names tell, whose a file is."""
