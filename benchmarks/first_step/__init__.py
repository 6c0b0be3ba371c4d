"""How long a job takes to its first training step, through the control plane and without it."""
