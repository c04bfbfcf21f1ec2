"""What several faces say over HTTP: problem details (RFC 9457), `RateLimit` headers, what an upstream's answer reports."""
