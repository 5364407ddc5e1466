"""What ranks tell each other besides collectives: tensors, objects, what a sum carries along."""
