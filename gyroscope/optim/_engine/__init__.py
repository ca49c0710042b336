"""The engine of all optimizers: one loop, scratch memory, batches, rounding, shards, compiled programs."""
