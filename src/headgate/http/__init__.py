"""HTTP that several faces share: problem details (RFC 9457), `RateLimit` headers, reports of upstreams' answers."""
