"""The anomalies, a module each: a few lines that compare what the collection has. None knows another's findings."""
