"""One update rule per file: a frozen dataclass with its closed forms and equation numbers."""
