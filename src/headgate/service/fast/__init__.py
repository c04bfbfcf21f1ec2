"""The fast path: asks and releases that are answered as they are read, inside uvicorn's protocol."""
