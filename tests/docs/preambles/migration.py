"""What docs/migration.md takes for granted."""

device = "cuda"
