"""Pages: artefacts as one HTML file each, which holds all it shows and works without a network."""
