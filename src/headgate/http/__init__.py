"""What several faces say over HTTP: problem details (RFC 9457), `RateLimit` headers, and what an answer of an upstream reports."""
