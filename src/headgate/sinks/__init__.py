"""Where events go, one file per destination."""
