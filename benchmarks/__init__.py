"""What Headgate costs, against floors and peers in the same run: ``python -m benchmarks``."""
