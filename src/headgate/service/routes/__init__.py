"""The routes of the guard: `table` lists them all, and each other file has the handlers of one concern."""
