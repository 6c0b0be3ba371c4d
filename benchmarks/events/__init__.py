"""What it costs a job that many clients follow its events."""
