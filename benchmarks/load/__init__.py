"""What the control plane does under load: many jobs on record, many submissions, many readers."""
