"""What is done about incidents: decided in `decide`, carried out here behind `Cluster`."""
