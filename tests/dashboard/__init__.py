"""Makes the dashboard for Grafana that deploy/profiles/grafana-dashboard ships."""
