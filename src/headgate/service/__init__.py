"""The guard: gates over HTTP, for workers in any language. `headgate serve` runs it."""
