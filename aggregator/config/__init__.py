"""The aggregator's configuration: one YAML file, a model for each section."""
