"""`/metrics`, and the stream of events for the dashboard."""
