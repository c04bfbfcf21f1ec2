"""The routes of the guard: `table` lists them all; the other files have the handlers."""
