"""Beyond the papers: what the library's own theory claims, held against simulated weights."""
