"""One file a stage: its config class, `main(config)`, and what it is made of."""
