"""What the charts and the monitoring are generated from: the services' own settings and metric definitions."""
