"""What every experiment shares: its form, its trials, its claims, its record and its figure."""
