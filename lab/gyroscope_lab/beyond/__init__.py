"""Beyond the papers: tests of the library's own theory on simulated weights and real training."""
