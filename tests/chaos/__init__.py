"""Random faults, groups and light traffic for cluster-hours in virtual time: `make chaos`."""
