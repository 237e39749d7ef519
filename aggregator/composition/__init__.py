"""Joins the configuration, the cluster and packages that know neither. `app` alone uses it."""
