"""Actions on incidents: decided in `decide`, carried out here behind `Cluster`."""
