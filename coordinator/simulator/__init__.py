"""A cluster that is only computed: the scheduler's own code on a virtual clock, with jobs and devices from traces."""
