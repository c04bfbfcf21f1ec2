"""PURE. What decides: limits, plans, the line, commands and flows. Nothing here knows a clock, lock, socket, thread or loop."""
