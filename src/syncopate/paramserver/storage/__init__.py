"""What a server keeps, in memory and on disk, and how it updates that."""
