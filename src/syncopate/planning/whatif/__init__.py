"""What-if: one training, swept over clusters and settings, and the questions that this answers."""
