"""What makes a process a worker: configuration, validation, error policies, dead letters, tasks."""
