"""Looking at all gates of a guard: `/metrics`, and the stream of events for the dashboard."""
