"""Configuration: `headgate.toml` read, checked and turned into policies (`file`), how a guard serves (`serve`), and values from outside (`sources`)."""
