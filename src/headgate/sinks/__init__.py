"""Where events are told, one file per place."""
