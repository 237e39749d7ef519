"""Orders of the aggregator: reset GPUs, reboot, test. Loaded where `repair.allow` names one."""
