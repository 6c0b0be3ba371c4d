"""Runs that meet faults must end with the weights of the run that met none."""
